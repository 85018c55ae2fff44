"""Means, paired tests and Holm's correction against numbers worked out by hand."""

import math

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapp.reports.statistics import (
    Mean,
    PairCounts,
    count_pairs,
    holm,
    interval_factor,
    largest_fall,
    last_rounds,
    mean_sd,
    paired_difference,
)

# --- means ----------------------------------------------------------------------------------------


def test_mean_and_sample_deviation_by_hand():
    found = mean_sd([0.1, 0.2, 0.6])  # mean 0.3; squares 0.04 + 0.01 + 0.09 = 0.14, over n - 1 = 2
    assert found.value == pytest.approx(0.3)
    assert found.sd == pytest.approx(math.sqrt(0.07))
    assert found.n == 3


def test_one_value_has_no_deviation_and_none_has_no_mean():
    assert mean_sd([0.5]) == Mean(0.5, None, 1)
    assert mean_sd([]) is None


# --- paired differences ---------------------------------------------------------------------------


def test_interval_and_p_by_hand_for_two_pairs():
    """d = 1, 3: mean 2, s = sqrt(2), error 1; t with one degree of freedom is Cauchy.

    t(0.975, 1) = tan(0.475 pi) = 12.7062; p of t = 2 is 1 - 2 atan(2) / pi = 0.2952.
    """
    found = paired_difference({0: 2.0, 1: 5.0}, {0: 1.0, 1: 2.0})
    assert (found.value, found.n) == (2.0, 2)
    assert found.low == pytest.approx(2 - math.tan(0.475 * math.pi))
    assert found.high == pytest.approx(2 + math.tan(0.475 * math.pi))
    assert found.p == pytest.approx(1 - 2 * math.atan(2) / math.pi)


def test_interval_and_p_for_three_pairs_from_a_printed_table():
    """d = 1, 2, 3 points: mean 2, s = 1; t(0.975, 2) = 4.303 as tables of t have it."""
    found = paired_difference({0: 0.71, 1: 0.72, 2: 0.73}, {0: 0.70, 1: 0.70, 2: 0.70})
    reach = 4.303 * 0.01 / math.sqrt(3)
    assert found.low == pytest.approx(0.02 - reach, abs=1e-5)
    assert found.high == pytest.approx(0.02 + reach, abs=1e-5)
    # With two degrees of freedom P(|T| > t) = 1 - t / sqrt(2 + t^2); here t = 2 sqrt(3).
    assert found.p == pytest.approx(1 - math.sqrt(12 / 14))


def test_differences_that_do_not_vary_are_not_tested():
    """A method against itself, and a constant difference, which floating point makes vary."""
    theirs = {0: 0.3, 1: 0.1, 2: 0.7}
    for more in (0.0, 0.1):
        found = paired_difference({seed: value + more for seed, value in theirs.items()}, theirs)
        assert (found.value, found.n) == (pytest.approx(more), 3)
        assert (found.low, found.high, found.p, found.half_width) == (None,) * 4


def test_only_seeds_that_both_have_are_paired():
    found = paired_difference({0: 0.5, 1: 0.9}, {1: 0.8, 2: 0.1})
    assert found.n == 1 and found.value == pytest.approx(0.1)
    assert found.p is None and found.low is None
    assert paired_difference({0: 0.5}, {1: 0.5}) is None
    assert paired_difference({}, {}) is None


def test_three_seeds_reach_two_and_a_half_deviations():
    assert interval_factor(3) == pytest.approx(4.303 / math.sqrt(3), abs=1e-3)
    assert interval_factor(2) == pytest.approx(12.706 / math.sqrt(2), abs=1e-3)


def test_the_interval_holds_the_truth_as_often_as_it_says():
    """2,000 draws of 3 normal pairs: 5 % miss; 4 standard errors, fails by chance 1 in 15,000."""
    draw, missed, trials = np.random.default_rng(5), 0, 2000
    for _ in range(trials):
        ours = dict(enumerate(draw.normal(0.02, 0.01, 3).tolist()))
        found = paired_difference(ours, dict.fromkeys(range(3), 0.0))
        missed += not found.low <= 0.02 <= found.high
    assert abs(missed / trials - 0.05) < 4 * math.sqrt(0.05 * 0.95 / trials)


# --- Holm -----------------------------------------------------------------------------------------


def test_holm_by_hand():
    """Sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1: 0.04, 0.06, 0.06 and 0.04 raised to 0.06."""
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])


def test_holm_leaves_one_test_alone_and_stops_at_one():
    assert holm([0.02]) == [0.02]
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_a_test_that_was_not_made_does_not_count():
    assert holm([None, 0.02, None, 0.03]) == [None, 0.04, None, 0.04]


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_keeps_the_order_and_lies_between_the_bare_p_and_bonferroni(values):
    corrected = holm(values)
    for p, after in zip(values, corrected, strict=True):
        assert p <= after <= min(1.0, p * len(values))
    order = np.argsort(values, kind="stable")
    assert np.all(np.diff(np.array(corrected, dtype=float)[order]) >= 0)


# --- sites ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ours", "theirs", "margin", "counts"), [
    ([0.5, 0.5, 0.1, 0.0], [0.4, 0.5, 0.2, 0.2], 0.0, (1, 2, 4)),
    ([0.63, 0.64, 0.62, 0.66, 0.64], [0.64, 0.63, 0.64, 0.64, 0.64], 0.01, (1, 1, 5)),
    ([], [], 0.0, (0, 0, 0)),
])  # fmt: skip
def test_equal_sites_are_neither_better_nor_worse_and_rounding_passes_no_margin(
    ours, theirs, margin, counts
):
    found = count_pairs(pandas.DataFrame({"ours": ours, "theirs": theirs}), margin)
    assert found == PairCounts(*counts)
    assert found.lower_share == (counts[1] / counts[2] if counts[2] else None)


# --- curves ---------------------------------------------------------------------------------------


def curve(*accuracies):
    """Rows of rounds 0, 1, ...: the first is the warm-up."""
    return [{"round": n, "mean_test_accuracy": a} for n, a in enumerate(accuracies)]


def test_the_last_five_rounds_or_as_many_as_there_are():
    assert last_rounds(curve(0.9, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)) == pytest.approx(0.4)
    assert last_rounds(curve(0.9, 0.1, 0.3)) == pytest.approx(0.2)
    assert last_rounds(curve(0.9)) is None


def test_the_largest_fall_leaves_the_warm_up_out():
    assert largest_fall(curve(0.9, 0.2, 0.5, 0.4, 0.6, 0.3)) == pytest.approx(0.3)
    assert largest_fall(curve(0.9, 0.1, 0.2, 0.2)) == 0.0
    assert largest_fall(curve(0.9, 0.1)) is None


def test_rounds_that_measured_nothing_are_left_out():
    rounds = curve(None, 0.5, None, 0.25)
    assert (last_rounds(rounds), largest_fall(rounds)) == (0.375, 0.25)
