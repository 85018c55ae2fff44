"""What is told of a site's bags, right or wrong, and how much it tells."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapp.data.bag_proportions import (
    condition_number,
    fit_to_sums,
    proportions_of,
    why_unidentifiable,
    with_noise,
)

PI = torch.tensor([[0.6, 0.2, 0.2], [0.2, 0.6, 0.2], [0.2, 0.2, 0.6]], dtype=torch.float64)


def draw(seed=0):
    return np.random.default_rng(seed)


def test_proportions_by_hand():
    """Two of the first class and one of the second; an empty bag; three of the last."""
    shares = proportions_of(np.array([[2, 1, 0], [0, 0, 0], [0, 0, 3]], np.int32))
    assert shares.dtype == torch.float64
    assert shares.tolist() == [[2 / 3, 1 / 3, 0], [0, 0, 0], [0, 0, 1]]


# --- how much they tell ---------------------------------------------------------------------------


def test_the_condition_number_by_hand():
    """Eigenvalues 1, 0.4, 0.4 of a symmetric table; of a diagonal one its entries."""
    assert condition_number(PI) == pytest.approx(2.5)
    assert condition_number(torch.eye(4)) == pytest.approx(1)
    assert condition_number(torch.diag(torch.tensor([4.0, 2.0]))) == pytest.approx(2)


def test_a_class_that_occurs_in_no_bag_asks_nothing():
    assert condition_number(torch.tensor([[0.8, 0.0, 0.2], [0.2, 0.0, 0.8]])) == pytest.approx(
        1 / 0.6
    )
    assert condition_number(torch.zeros(2, 3)) == condition_number(torch.zeros(0, 3)) == 1


@pytest.mark.parametrize(("rows", "says"), [
    ([[0.5, 0.5], [0.5, 0.5]], "its 2 bags do not tell 2 classes apart"),
    ([[0.3, 0.7]], "there is 1 bag, but 2 classes in them"),
    ([[0.0, 0.0], [0.2, 0.8]], "there is 1 bag, but 2 classes in them"),
    ([[0.8, 0.2, 0.0], [0.0, 0.2, 0.8], [0.4, 0.2, 0.4]], "its 3 bags do not tell 3 classes apart"),
])  # fmt: skip
def test_bags_that_do_not_tell_the_classes_apart(rows, says):
    assert condition_number(torch.tensor(rows)) == math.inf
    wrong = why_unidentifiable(torch.tensor(rows))
    assert wrong is not None and says in wrong[0] and "bags" in wrong[1]


# --- wrong proportions (FU5) ----------------------------------------------------------------------


def test_without_noise_they_stay_as_they_are():
    assert torch.equal(with_noise(PI, 0.0, draw()), PI)
    assert why_unidentifiable(PI) is None


def test_noise_by_hand():
    """(2 g - 1) e + 1 with e = 0.5 and the generator's own first numbers."""
    g = draw(3).random((3, 3))
    wanted = PI.numpy() * (0.5 + g)
    np.testing.assert_allclose(with_noise(PI, 0.5, draw(3)).numpy(), wanted, rtol=1e-12)


def test_little_noise_keeps_the_factors_between_0_8_and_1_2():
    factors = torch.cat([with_noise(PI, 0.2, draw(seed)) / PI for seed in range(200)])
    assert 0.8 <= factors.min() < 0.81 and 1.19 < factors.max() <= 1.2


def test_much_noise_is_cut_to_shares_and_leaves_no_row_empty():
    """At e = 2 a factor is negative for one entry in four: all three of a row for one in 64."""
    found = torch.stack([with_noise(PI, 2.0, draw(seed)) for seed in range(300)])
    assert found.min() == 0 and found.max() == 1
    assert (found.sum(2) > 0).all()
    assert (found == PI).all(2).any()  # a row that would be 0 stays as it is


# --- a table with given sums ----------------------------------------------------------------------


def test_a_fit_by_hand():
    """Of odds ratio 4 there is one table with even sums: 1/3 and 1/6."""
    table = fit_to_sums(np.array([[4.0, 1.0], [1.0, 1.0]]), np.full(2, 0.5), np.full(2, 0.5))
    np.testing.assert_allclose(table, [[1 / 3, 1 / 6], [1 / 6, 1 / 3]], atol=1e-10)


@given(st.integers(1, 12), st.integers(1, 8), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=50)
def test_rows_and_columns_have_their_sums(bags, classes, seed):
    """Classes may be rare or absent."""
    numbers = draw(seed)
    columns = np.append(numbers.integers(0, 5000, classes - 1), 7).astype(np.float64)
    rows = np.full(bags, columns.sum() / bags)
    table = fit_to_sums(numbers.uniform(0.1, 10, (bags, classes)), rows, columns)
    np.testing.assert_allclose(table.sum(1), rows, rtol=1e-9)
    np.testing.assert_allclose(table.sum(0), columns, rtol=1e-9)
    assert (table >= 0).all()
