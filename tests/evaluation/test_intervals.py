"""DeLong's test: by hand, against the sums that it shortens, and at the borders."""

import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from fedapp.evaluation.intervals import Difference, difference, placements


def slowly(first, second, of):
    """Return the difference and its variance by all pairs (DeLong et al. 1988)."""

    def beats(scores):
        x, y = scores[of][:, None], scores[~of][None]
        return (x > y) + 0.5 * (x == y)

    one, other = beats(first), beats(second)
    v, w = (one - other).mean(1), (one - other).mean(0)
    return one.mean() - other.mean(), v.var(ddof=1) / len(v) + w.var(ddof=1) / len(w)


def test_numbers_by_hand():
    of = np.array([True, True, False, False])
    first, second = np.array([4.0, 2.0, 1.0, 3.0]), np.array([4.0, 3.0, 2.0, 1.0])
    v, w = placements(first, of)
    assert v.tolist() == [1, 0.5] and w.tolist() == [1, 0.5]  # 3 of 4 pairs in order
    found = difference(first, second, of)
    assert found.gain == -0.25
    assert found.error == pytest.approx(math.sqrt(0.125 / 2 + 0.125 / 2))


@pytest.mark.parametrize("seed", range(10))
def test_it_is_the_sum_over_all_pairs(seed):
    stream = np.random.default_rng(seed)
    of = stream.random(60) < 0.3
    first = np.round(stream.normal(size=60) + of, 1)  # ties
    second = np.round(first + stream.normal(size=60), 1)
    found = difference(first, second, of)
    gain, variance = slowly(first, second, of)
    assert found.gain == pytest.approx(gain)
    assert found.gain == pytest.approx(roc_auc_score(of, first) - roc_auc_score(of, second))
    assert found.error == pytest.approx(math.sqrt(variance))
    back = difference(second, first, of)
    assert back.gain == pytest.approx(-found.gain) and back.p == pytest.approx(found.p)


def test_a_change_of_scale_changes_nothing():
    stream = np.random.default_rng(1)
    of, first = np.arange(30) % 2 == 0, stream.normal(size=30)
    assert difference(first, np.exp(first), of) == Difference(0, 0, 1)


def test_constant_and_perfect_scores():
    of = np.repeat([True, False], 10)
    found = difference(of.astype(float), np.zeros(20), of)
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
        alarms += difference(one, other, of).p < 0.05
    assert 0.02 < alarms / 1000 < 0.085
