"""Fixed point: three oracles."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapp.protocol.secure_aggregation.context import MaskError
from fedapp.protocol.secure_aggregation.fixed_point import (
    FRACTION,
    from_words,
    max_number,
    to_words,
)

STEP = 2.0**-FRACTION


def numbers(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def test_words_by_hand():
    words = to_words(numbers(0, 1, -1, 0.5, STEP, -STEP, 2.5 * STEP, 3.5 * STEP), 2)
    one = 2**30
    minus = 2**64
    # Halves go to the even neighbour.
    assert words.tolist() == [0, one, minus - one, one // 2, 1, minus - 1, 2, 4]
    assert from_words(words[:4], 2).tolist() == [0, 1, -1, 0.5]


def test_what_lies_on_the_grid_comes_back_as_it_was():
    grid = np.random.default_rng(0).integers(-(2**50), 2**50, 1000).astype(np.float64) * STEP
    assert np.array_equal(from_words(to_words(grid, 100), 100), grid)


@pytest.mark.parametrize("sites", [1, 2, 3, 7, 100, 1000, 4096])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_numbers_of_all_sites_do_not_overflow(sites, sign):
    most = sign * max_number(sites)
    words = to_words(numbers(most), sites)
    total = int(words.view(np.int64)[0]) * sites
    assert abs(total) < 2**63 and total * sign > 0
    added = np.sum(np.repeat(words, sites), dtype=np.uint64, keepdims=True)
    assert int(added.view(np.int64)[0]) == total
    # The exact sum, but for float64's own rounding.
    assert from_words(added, sites)[0] == pytest.approx(sites * most, rel=2**-52)
    assert abs(most) == pytest.approx(2.0 ** (63 - FRACTION) / sites, rel=1e-9)


@pytest.mark.parametrize("sites", [1, 3, 100, 4096])
@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan, "above", "below"])
def test_one_number_too_large_is_named_by_its_place(sites, wrong):
    above = np.nextafter(max_number(sites), np.inf)
    value = {"above": above, "below": -above}.get(wrong, wrong)
    with pytest.raises(MaskError, match=r"^number 1 of 3 .* within ±.*lower") as error:
        to_words(numbers(1, value, value), sites)
    assert "\n" not in str(error.value)
    assert isinstance(wrong, str) or str(value) not in str(error.value)  # the server reads it


@given(st.lists(st.floats(-max_number(5), max_number(5)), min_size=5, max_size=5))
def test_the_error_of_a_sum_is_what_is_stated(values):
    words = [to_words(numbers(value), 5) for value in values]
    exact = sum(map(Fraction, values))
    found = from_words(np.sum(words, axis=0, dtype=np.uint64), 5)[0]
    own = abs(exact) * Fraction(2) ** -53  # float64's rounding of the sum
    assert abs(Fraction(found) - exact) <= 5 * Fraction(2) ** -(FRACTION + 1) + own


def test_the_error_can_be_as_large_as_stated():
    words = to_words(np.full(8, STEP / 2), 8)  # all go down to 0
    assert from_words(np.sum(words, dtype=np.uint64, keepdims=True), 8)[0] == 0
    words = to_words(np.full(8, 1.5 * STEP), 8)  # all go up to 2
    assert from_words(np.sum(words, dtype=np.uint64, keepdims=True), 8)[0] == 16 * STEP


def test_a_sum_above_what_all_can_give_is_refused():
    words = to_words(numbers(0, 3, 3.0001), 3)
    assert from_words(words[:2], 3, largest=1)[1] == 3
    with pytest.raises(MaskError, match=r"number 2 of 3 .* 3 sites can give at most 3"):
        from_words(words, 3, largest=1)
    with pytest.raises(MaskError, match="number 0 of 1"):
        from_words(np.array([2**63], dtype=np.uint64), 1)
