"""python -m bench.hospitals: the sums behind its table, by hand."""

import numpy as np
import pytest

from bench import hospitals as bench_hospitals
from bench.hospitals import (
    ALONE,
    EVEN,
    TOGETHER,
    Hospital,
    better,
    fedavg,
    for_mix,
    found_and_spared,
    ill_share,
    logistic,
    remixed,
    rows,
    scores,
)


def test_another_mix_by_bayes_rule():
    """Odds of 1 where half are ill are odds of 4 where four of five are; the same mix: the same."""
    said = np.array([0.5, 0.2, 0.0, 1.0])
    assert remixed(said, 0.5, 0.8) == pytest.approx([0.8, 0.5, 0.0, 1.0])
    assert for_mix([said], [0.3], [0.3])[0] == pytest.approx(said)


def test_shares_and_scores():
    assert ill_share([np.array([1, 1]), np.array([1])]) == 4 / 5
    assert ill_share([np.array([], int)]) == 0.5
    ill = np.array([0, 0, 1, 1])
    assert scores(np.array([0.1, 0.6, 0.7, 0.4]), ill) == (50.0, 50.0, 75.0, 50.0, 50.0)
    assert scores(np.array([0.1, 0.2, 0.7, 0.4, 0.9]), ill)[3:] == (50.0, 100.0)
    assert scores(np.array([0.9, 0.1]), np.array([1, 1]))[0] == 50.0


def test_one_diagnosis_alone_is_the_answer():
    one = hospital(np.zeros((2, 3)), [1, 1], [0, 1, 1], [1])
    assert logistic([one], one, 0.3).tolist() == [1.0] * 4


def hospital(x, labels, truth=(), validation=()):
    known, ill = np.array(x, float), [np.array(of, int) for of in (labels, truth, validation)]
    asked = np.zeros((len(truth) + len(validation), known.shape[1]))
    return Hospital(known, ill[0], asked, *ill[1:])


def test_the_better_way_alone_is_right_on_more_validation_patients():
    """The first two answers are of test patients and do not count; equal: the first way."""
    one, nobody = hospital([[0.0]], [0], [1, 1], [0, 1]), hospital([[0.0]], [0], [1, 0])
    wrong, right = np.array([0.9, 0.9, 0.6, 0.6]), np.array([0.1, 0.1, 0.4, 0.6])
    assert (
        better([wrong], [right], [one])[0] is right and better([right], [wrong], [one])[0] is right
    )
    assert better([right[:2]], [wrong[:2]], [nobody])[0].tolist() == [0.1, 0.1]
    assert better([wrong], [wrong.copy()], [one])[0] is wrong


def test_fedavg_by_hand(monkeypatch):
    """One step of rate 1 from 0: x (label - 1/2), the mean over patients; then by patients."""
    monkeypatch.setattr(bench_hospitals, "ROUNDS", 1)
    monkeypatch.setattr(bench_hospitals, "STEPS", 1)
    one, three = hospital([[2.0]], [1]), hospital([[4.0]] * 3, [0] * 3)
    assert fedavg([one], 1.0).tolist() == [1.0, 0.5]
    assert fedavg([one, three], 1.0).tolist() == [(1 - 3 * 2) / 4, (0.5 - 3 * 0.5) / 4]


def test_fedavg_of_equal_hospitals_is_that_of_one_and_without_labels_one_sends_nothing():
    one = hospital([[1.0], [-1.0], [0.5]], [1, 0, 0])
    nobody = hospital(np.zeros((0, 1)), [])
    assert fedavg([one, one, nobody], 0.3) == pytest.approx(fedavg([one], 0.3))
    assert np.isfinite(fedavg([one], 1e6)).all()


def test_the_gain_is_paired_over_draws():
    """Accuracies of two draws at four hospitals, 10 above alone in one draw and 20 in the other."""
    alone = np.full((2, 4, 5), 50.0)
    together = alone + np.array([10.0, 20.0])[:, None, None]
    every = {TOGETHER: together, ALONE: alone, ALONE + EVEN: together, TOGETHER + EVEN: alone}
    first, second, _, even = rows("100 %", every, alone)
    assert first["over alone"] == first["AUROC over alone"] == "+15.0 ± 9.8"  # 1.96 * 7.07 / 2**.5
    shown = first["mean"], second["over alone"], even["over alone"]  # even: over the even mix alone
    assert shown == ("65.0", "", "-15.0 ± 9.8")
    spared = found_and_spared("100 %", every)
    assert [*spared[3].values()][1:] == ["long beach", *["65.0", "50.0", "50.0"] * 2]
