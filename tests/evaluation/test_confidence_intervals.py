"""How sure a number is: Wilson's interval, the bootstrap by image and by patient, DeLong's test."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from sklearn.metrics import roc_auc_score

from fedapp.evaluation.confidence_intervals import (
    AurocDifference,
    bootstrap_weights,
    delong_test,
    percentile_interval,
    placements,
    wilson,
)
from fedapp.learn.metrics import evaluation
from fedapp.models.description import MeasuredAccuracy


def test_wilsons_interval_by_hand_and_by_scipy():
    """8 of 10, z = 1.96: (0.8 + 0.19208 -+ 1.96 sqrt(0.016 + 0.009604)) / 1.38416.

    3 of 4, z = 1: (0.75 + 0.125 -+ sqrt(0.1875 / 4 + 1 / 64)) / 1.25.
    """
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(3, 4, z=1) == pytest.approx((0.5, 0.9))
    assert wilson(0, 0) == (0.0, 1.0)
    for total in (1, 10, 1000):  # exactly, whatever the rounding
        assert wilson(0, total)[0] == 0.0 and wilson(total, total)[1] == 1.0
    for total in (1, 7, 165, 1_000_000):
        for correct in {0, 1, total // 3, total - 1, total}:
            theirs = binomtest(correct, total).proportion_ci(method="wilson")
            assert wilson(correct, total) == pytest.approx(tuple(theirs))


def test_a_patients_images_are_drawn_together():
    drawn = bootstrap_weights(5, "a", 200, np.array([7, 3, 7, 7, 3]))
    assert (drawn[:, 0] == drawn[:, 2]).all() and (drawn[:, 1] == drawn[:, 4]).all()
    assert (drawn[:, 0] + drawn[:, 1] == 2).all()  # two patients are drawn
    of_one_patient = bootstrap_weights(4, "c", 20, np.zeros(4, np.int64))
    assert (of_one_patient == 1).all()
    of_one_image_each = bootstrap_weights(6, "b", 50, np.array([9, 11, 12, 30, 31, 99]))
    assert (of_one_image_each == bootstrap_weights(6, "b", 50)).all()


def test_it_covers_where_images_by_themselves_do_not():
    """400 sites of 40 patients with five images that are all right or all wrong, p = 0.7.

    By patient 95 % of the intervals are to hold 0.7, and 90 % or more do in all but 1 of 10,000
    such tests; by image they are too narrow by the root of five, and hold it in six of ten.
    """
    stream, groups = np.random.default_rng(0), np.repeat(np.arange(40), 5)
    held = {"patient": 0, "image": 0}
    of = {
        "patient": bootstrap_weights(200, "d", 400, groups),
        "image": bootstrap_weights(200, "d", 400),
    }
    for _ in range(400):
        right = np.repeat(stream.random(40) < 0.7, 5)
        for kind, drawn in of.items():
            low, high = percentile_interval(drawn @ right / drawn.sum(1))
            held[kind] += low <= 0.7 <= high
    assert held["patient"] / 400 > 0.9
    assert held["image"] / 400 < 0.75


def test_the_spread_is_that_of_as_many_images_by_hand():
    """Of 50 patients the share's standard error is sqrt(p q / 50), whatever their images."""
    groups, right = np.repeat(np.arange(50), 4), np.repeat(np.arange(50) < 20, 4)
    drawn = bootstrap_weights(200, "e", 4000, groups)
    assert (drawn @ right / drawn.sum(1)).std() == pytest.approx((0.4 * 0.6 / 50) ** 0.5, rel=0.05)


def measured(right, patients=None):
    right = np.asarray(right)
    answers, labels = torch.eye(2)[torch.as_tensor(right).long()], torch.ones(len(right)).long()
    found = MeasuredAccuracy.of(evaluation(answers, labels))
    return found if patients is None else found.by_patient(right, np.asarray(patients))


def test_accuracys_interval_is_as_wide_as_that_of_patients():
    """Ten images each of 12 patients, all right or all wrong, say what 12 images do."""
    right = np.repeat(np.arange(12) < 9, 10)
    by_image, by_patient = measured(right), measured(right, np.repeat(np.arange(12), 10))
    few = measured(np.arange(12) < 9)
    reach = [one.interval[1] - one.interval[0] for one in (by_image, by_patient, few)]
    assert reach[1] == pytest.approx(reach[2], abs=0.1) and reach[1] > 2.5 * reach[0]
    assert by_patient.ends.endswith(", by 12 patients") and "patient" not in by_image.ends


def test_patients_of_one_image_each_and_a_single_patient():
    right = np.arange(40) % 4 > 0
    each, plain = measured(right, np.arange(40)), measured(right)
    assert each.interval == pytest.approx(plain.interval, abs=0.03)
    assert each.interval[0] <= plain.interval[0] and each.interval[1] >= plain.interval[1]
    one = measured(right, np.zeros(40, np.int64))
    assert one.interval == plain.interval and one.ends.endswith("by 1 patient")


def slowly(first, second, of):
    """Return the difference and its variance by all pairs (DeLong et al. 1988)."""

    def beats(scores):
        x, y = scores[of][:, None], scores[~of][None]
        return (x > y) + 0.5 * (x == y)

    one, other = beats(first), beats(second)
    v, w = (one - other).mean(1), (one - other).mean(0)
    return one.mean() - other.mean(), v.var(ddof=1) / len(v) + w.var(ddof=1) / len(w)


def test_delongs_numbers_by_hand():
    of = np.array([True, True, False, False])
    first, second = np.array([4.0, 2.0, 1.0, 3.0]), np.array([4.0, 3.0, 2.0, 1.0])
    v, w = placements(first, of)
    assert v.tolist() == [1, 0.5] and w.tolist() == [1, 0.5]  # 3 of 4 pairs in order
    found = delong_test(first, second, of)
    assert found.gain == -0.25
    assert found.error == pytest.approx(math.sqrt(0.125 / 2 + 0.125 / 2))


@pytest.mark.parametrize("seed", range(10))
def test_delongs_variance_is_the_sum_over_all_pairs(seed):
    stream = np.random.default_rng(seed)
    of = stream.random(60) < 0.3
    first = np.round(stream.normal(size=60) + of, 1)  # ties
    second = np.round(first + stream.normal(size=60), 1)
    found = delong_test(first, second, of)
    gain, variance = slowly(first, second, of)
    assert found.gain == pytest.approx(gain)
    assert found.gain == pytest.approx(roc_auc_score(of, first) - roc_auc_score(of, second))
    assert found.error == pytest.approx(math.sqrt(variance))
    back = delong_test(second, first, of)
    assert back.gain == pytest.approx(-found.gain) and back.p == pytest.approx(found.p)


def test_a_change_of_scale_changes_nothing():
    stream = np.random.default_rng(1)
    of, first = np.arange(30) % 2 == 0, stream.normal(size=30)
    assert delong_test(first, np.exp(first), of) == AurocDifference(0, 0, 1)


def test_constant_and_perfect_scores():
    of = np.repeat([True, False], 10)
    found = delong_test(of.astype(float), np.zeros(20), of)
    assert (found.gain, found.error, found.p) == (0.5, 0, 0)
    assert found.interval == (0.5, 0.5)


def test_equal_tests_are_called_unequal_once_in_twenty():
    """1,000 draws of two equally good scores of 100 images: 5 % below p = 0.05.

    The standard deviation of that share is 0.7 points: 2 to 8.5 % is missed by chance less than
    once in 10^4.
    """
    stream, alarms = np.random.default_rng(7), 0
    of = np.arange(100) < 40
    for _ in range(1000):
        common = stream.normal(size=100) + of
        one, other = (common + stream.normal(size=100) for _ in range(2))
        alarms += delong_test(one, other, of).p < 0.05
    assert 0.02 < alarms / 1000 < 0.085
