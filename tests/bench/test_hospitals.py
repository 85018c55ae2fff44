"""python -m bench.hospitals: the sums behind its table, by hand."""

import numpy as np
import pytest

from bench.hospitals import ALONE, TOGETHER, Hospital, ill_share, logistic, remixed, rows, scores


def test_another_mix_by_bayes_rule():
    """Odds of 1 where half are ill are odds of 4 where four of five are; the same mix: the same."""
    said = np.array([0.5, 0.2])
    assert remixed(said, 0.5, 0.8) == pytest.approx([0.8, 0.5])
    assert remixed(said, 0.3, 0.3) == pytest.approx(said)


def test_shares_and_scores():
    assert ill_share([np.array([1, 1]), np.array([1])]) == 4 / 5
    assert ill_share([np.array([], int)]) == 0.5
    ill = np.array([0, 0, 1, 1])
    assert scores(np.array([0.1, 0.6, 0.7, 0.4]), ill) == (50.0, 50.0, 75.0)
    assert scores(np.array([0.9, 0.1]), np.array([1, 1]))[0] == 50.0


def test_one_diagnosis_alone_is_the_answer():
    one = Hospital(np.zeros((2, 3)), np.array([1, 1]), np.ones((4, 3)), np.array([0, 1, 1, 1]))
    assert logistic([one], one, 0.3).tolist() == [1.0] * 4


def test_the_gain_is_paired_over_draws():
    """Accuracies of two draws at four hospitals, 10 above alone in one draw and 20 in the other."""
    alone = np.full((2, 4, 3), 50.0)
    together = alone + np.array([10.0, 20.0])[:, None, None]
    first, second = rows("100 %", {TOGETHER: together, ALONE: alone}, alone)
    assert first["over alone"] == "+15.0 ± 9.8" and first["mean"] == "65.0"  # 1.96 * 7.07 / 2**.5
    assert first["AUROC over alone"] == first["over alone"] and second["over alone"] == ""
