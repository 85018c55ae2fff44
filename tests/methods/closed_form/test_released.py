"""The closed form of noisy sums: by hand, without noise, and with more noise than sums."""

import math

import pytest
import torch

from fedapp.learn.params import schema_of
from fedapp.methods.closed_form._contents import Solution
from fedapp.methods.closed_form._protected import (
    LIKELY,
    chosen_at_home,
    classes_of,
    solution_of,
)
from fedapp.methods.closed_form._released import (
    COUNTED,
    GUESSED_SUMS,
    RELEASED,
    SENSITIVITY,
    SIZE,
    SQUARED,
    Released,
    projection,
    released_schemas,
    scale,
    shortened,
)

DRAWS = torch.Generator().manual_seed(7)
CLASSES = 3
EYE = torch.eye(4, dtype=torch.float64)


def rows(count: int, size: int = 4) -> torch.Tensor:
    found = torch.randn(count, size, generator=DRAWS, dtype=torch.float64)
    return found / found.norm(dim=1, keepdim=True).clamp_min(1.0)


def both(known, labels, other, guessed) -> torch.Tensor:
    """Everything that a site releases, as one row."""
    first = Released.of(known, labels, CLASSES, other).to_params()[RELEASED]
    second = Released.of(other, guessed, CLASSES).to_params(GUESSED_SUMS)[GUESSED_SUMS]
    return torch.cat([first, second])


def test_one_labelled_image_by_hand():
    """f = (0.6, 0.8): f f^T is 0.36, 0.48, 0.64; its row has 0.48 sqrt(2)."""
    f = torch.tensor([[0.6, 0.8]], dtype=torch.float64)
    row = Released.of(f, torch.tensor([1]), 2, f[:0]).to_params()[RELEASED]
    square = [SQUARED * 0.36, SQUARED * 0.48 * math.sqrt(2), SQUARED * 0.64]
    assert row.tolist() == pytest.approx([0, COUNTED, 0, 0, 0.6, 0.8, *square])
    assert float(row.norm()) == pytest.approx(SENSITIVITY)  # |f| = 1: the bound is met


def test_no_image_changes_all_that_is_released_by_more_than_the_sensitivity():
    known, other = rows(20), rows(30)
    labels, guessed = torch.arange(20) % CLASSES, torch.arange(30) % CLASSES
    whole = both(known, labels, other, guessed)
    for k in range(20):
        left = torch.arange(20) != k
        gone = both(known[left], labels[left], other, guessed)
        assert float((whole - gone).norm()) <= SENSITIVITY + 1e-12
    for k in range(30):
        left = torch.arange(30) != k
        gone = both(known, labels, other[left], guessed[left])
        assert float((whole - gone).norm()) <= SENSITIVITY + 1e-12


def test_a_row_is_read_back_and_has_its_schema():
    known, other, labels = rows(9), rows(5), torch.arange(9) % CLASSES
    made = Released.of(known, labels, CLASSES, other)
    params = made.to_params()
    assert schema_of(params) == released_schemas(CLASSES, 4)[RELEASED]
    back = Released.from_params(params, CLASSES, 4)
    torch.testing.assert_close(back.second, known.T @ known + other.T @ other)
    torch.testing.assert_close(back.sums, made.sums)
    torch.testing.assert_close(back.counts, made.counts)
    guesses = Released.of(other, torch.zeros(5, dtype=torch.int64), CLASSES)
    again = Released.from_params(guesses.to_params(GUESSED_SUMS), CLASSES, 4)
    torch.testing.assert_close(back.with_guesses(again).counts, torch.tensor([8.0, 3, 3]).double())
    assert schema_of(guesses.to_params(GUESSED_SUMS)) == released_schemas(3, 4)[GUESSED_SUMS]


def test_sites_rows_add_up_to_the_row_of_all_images():
    known, labels, none = rows(12), torch.arange(12) % CLASSES, rows(0)
    parts = [Released.of(known[k::2], labels[k::2], CLASSES, none) for k in range(2)]
    whole = Released.of(known, labels, CLASSES, none)
    torch.testing.assert_close((parts[0] + parts[1]).to_params(), whole.to_params())


def test_without_noise_it_is_the_discriminant_of_the_images():
    known, labels = rows(300), torch.arange(300) % CLASSES
    found, level = classes_of(Released.of(known, labels, CLASSES, rows(0)), 300, 0.0, EYE)
    means = torch.stack([known[labels == c].mean(0) for c in range(CLASSES)])
    apart = known - means[labels]
    torch.testing.assert_close(found.within, apart.T @ apart / 300)
    # A mean is drawn to the middle by what noise alone would do: here none.
    torch.testing.assert_close(found.means, means)
    assert level == pytest.approx(0.1 * float(found.within.trace()) / 4)


def test_with_more_noise_than_sums_the_solution_is_finite_and_shy():
    known, labels = rows(30), torch.arange(30) % CLASSES
    total = Released.of(known, labels, CLASSES, rows(0))
    noise = 50.0
    drawn = torch.randn(len(total.to_params()[RELEASED]), generator=DRAWS, dtype=torch.float64)
    row = {RELEASED: total.to_params()[RELEASED] + noise * drawn}
    found, level = classes_of(Released.from_params(row, CLASSES, 4), 30, noise, EYE)
    values = torch.linalg.eigvalsh(found.within)
    assert float(values.min()) > -1e-9  # cut before lambda, which is whole in every direction
    assert level > 0.1 * noise / SQUARED * math.sqrt(8) / 30
    solution = solution_of(found, level)
    assert bool(solution.weight.isfinite().all()) and not bool(solution.prior.any())


def test_a_class_whose_count_is_noise_is_one_that_nobody_has_images_of():
    known, labels = rows(60), torch.arange(60) % 2
    found, _ = classes_of(Released.of(known, labels, CLASSES, rows(0)), 60, 0.1, EYE)
    assert found.counts.tolist() == [30, 30, 0]
    nothing, level = classes_of(Released.of(known, labels, CLASSES, rows(0)), 60, 1e6, EYE)
    assert nothing.counts.tolist() == [0, 0, 0]
    assert bool(solution_of(nothing, level).weight.isfinite().all())


def test_a_noisy_mean_is_drawn_to_the_middle():
    known, labels = rows(300), torch.arange(300) % CLASSES
    total = Released.of(known, labels, CLASSES, rows(0))
    clear, _ = classes_of(total, 300, 0.0, EYE)
    drawn, _ = classes_of(total, 300, 5.0, EYE)
    assert float((drawn.means - drawn.means.mean(0)).norm()) < 0.1 * float(
        (clear.means - clear.means.mean(0)).norm()
    )


def test_the_subspace_is_everybodys_and_keeps_lengths_on_average():
    columns = projection(3, 1000)
    torch.testing.assert_close(columns.T @ columns, torch.eye(SIZE, dtype=torch.float64))
    assert torch.equal(columns, projection(3, 1000)) and not torch.equal(
        columns, projection(4, 1000)
    )
    assert torch.equal(projection(3, 5), torch.eye(5, dtype=torch.float64))
    far = rows(400, 1000)
    lengths = (far @ columns / scale(columns)).norm(dim=1) / far.norm(dim=1)
    assert float(lengths.mean()) == pytest.approx(1.0, abs=0.03)
    cut = shortened(far.float(), columns).norm(dim=1)
    assert float(cut.max()) <= 1 + 1e-12


def test_heads_of_the_subspace_answer_features_as_they_are():
    columns = projection(3, 500)
    f = rows(90, 500)
    labels = torch.arange(90) % CLASSES
    short = shortened(f, columns)
    found, level = classes_of(Released.of(short, labels, CLASSES, short[:0]), 90, 0.0, columns)
    weight, _ = found.head(level)
    torch.testing.assert_close(weight @ columns @ columns.T, weight)


def solution(classes: int = 2, size: int = 4) -> Solution:
    known = torch.cat([EYE[:1].repeat(50, 1), EYE[1:2].repeat(50, 1)])
    labels = torch.arange(100) // 50
    found = classes_of(Released.of(known, labels, classes, known[:0]), 100, 0.01, EYE)
    return solution_of(*found)


def test_a_site_without_validation_images_takes_the_common_answer():
    known = torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)
    even = torch.full((2,), 0.5, dtype=torch.float64)
    assert chosen_at_home(solution(), known, known, even).tolist() == [LIKELY, 0.0]


def test_a_site_whose_images_are_others_lets_its_own_count():
    """Its labels are the other way round: own images must win, and be trusted."""
    known = EYE[:2].float().repeat(30, 1), torch.tensor([1, 0]).repeat(30)
    even = torch.full((2,), 0.5, dtype=torch.float64)
    temperature, own = chosen_at_home(solution(), known, known, even).tolist()
    assert own >= 3.0
    same = EYE[:2].float().repeat(30, 1), torch.tensor([0, 1]).repeat(30)
    assert chosen_at_home(solution(), same, same, even).tolist()[1] == 0.0
    made = solution().tempered(temperature, own)
    torch.testing.assert_close(made.weight * temperature, solution().weight * LIKELY)
