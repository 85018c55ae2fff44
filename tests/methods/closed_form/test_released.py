"""The closed form of noisy sums: by hand, without noise, and with more noise than sums."""

import math

import pytest
import torch

from fedapp.learn.params import schema_of
from fedapp.methods.closed_form._contents import Solution
from fedapp.methods.closed_form._discriminant import Classes, Sums
from fedapp.methods.closed_form._protected import (
    LIKELY,
    RIDGE,
    USUAL,
    chosen_at_home,
    classes_of,
    cleared,
    solution_of,
)
from fedapp.methods.closed_form._released import (
    COUNTED,
    MIDDLED,
    RADIUS,
    RELEASED,
    SENSITIVITY,
    SQUARED,
    Released,
    released_schemas,
    shortened,
)

DRAWS = torch.Generator().manual_seed(7)
CLASSES = 3
EYE = torch.eye(4, dtype=torch.float64)
HERE = torch.zeros(4, dtype=torch.float64)
"""A middle."""


def rows(count: int, size: int = 4) -> torch.Tensor:
    found = torch.randn(count, size, generator=DRAWS, dtype=torch.float64)
    return found / found.norm(dim=1, keepdim=True).clamp_min(1.0)


def both(known, labels, other) -> torch.Tensor:
    """Everything that a site releases, as one row."""
    middle = MIDDLED * (known.sum(0) + other.sum(0))
    return torch.cat([middle, Released.of(known, labels, CLASSES, other).to_params()[RELEASED]])


def test_one_labelled_image_by_hand():
    """f = (0.6, 0.8): f f^T is 0.36, 0.48, 0.64; its row has 0.48 sqrt(2)."""
    f = torch.tensor([[0.6, 0.8]], dtype=torch.float64)
    row = Released.of(f, torch.tensor([1]), 2, f[:0]).to_params()[RELEASED]
    square = [SQUARED * 0.36, SQUARED * 0.48 * math.sqrt(2), SQUARED * 0.64]
    assert row.tolist() == pytest.approx([0, COUNTED, 0, 0, 0.6, 0.8, *square])
    whole = math.hypot(float(row.norm()), MIDDLED)
    assert whole == pytest.approx(SENSITIVITY)  # |f| = |g| = 1: the bound is met


def test_no_image_changes_all_that_is_released_by_more_than_the_sensitivity():
    known, other = rows(20), rows(30)
    labels = torch.arange(20) % CLASSES
    whole = both(known, labels, other)
    for k in range(20):
        left = torch.arange(20) != k
        gone = both(known[left], labels[left], other)
        assert float((whole - gone).norm()) <= SENSITIVITY + 1e-12
    for k in range(30):
        left = torch.arange(30) != k
        gone = both(known, labels, other[left])
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


def test_sites_rows_add_up_to_the_row_of_all_images():
    known, labels, none = rows(12), torch.arange(12) % CLASSES, rows(0)
    parts = [Released.of(known[k::2], labels[k::2], CLASSES, none) for k in range(2)]
    whole = Released.of(known, labels, CLASSES, none)
    torch.testing.assert_close((parts[0] + parts[1]).to_params(), whole.to_params())


def test_without_noise_it_is_the_closed_form_of_the_images_as_they_are():
    """In one place, in the whole space, with nothing cut: what `Classes.of` says of them."""
    known, other = RADIUS / 2 * rows(300), RADIUS / 2 * rows(200)
    labels = torch.arange(300) % CLASSES
    known[labels == 1] += 0.2 * EYE[0]
    middle = torch.cat([known, other]).mean(0)
    g, more = (shortened(part, middle) for part in (known, other))
    found = classes_of(Released.of(g, labels, CLASSES, more), 500, 0.0, middle)
    plain = Classes.of(Sums.of(known, labels, other, CLASSES))
    for name in ("counts", "means", "within"):
        torch.testing.assert_close(getattr(found, name), getattr(plain, name))
    head = plain.head(plain.level(RIDGE))
    torch.testing.assert_close(solution_of(found).weight * LIKELY, head[0])


def test_a_spectrum_is_cleared_of_noise_by_hand():
    """Radius 2: 5/2 is seen of 2, since 2 + 2^2 / (4 x 2) = 5/2; -1, 1/2 and 2 are hidden."""
    left, floor = cleared(torch.diag(torch.tensor([2.5, 0.5, -1.0, 2.0])).double(), 2.0)
    assert floor == pytest.approx(2 / 3)  # the trace is 4, of which 2 is seen
    torch.testing.assert_close(left, torch.diag(torch.tensor([2, 2 / 3, 2 / 3, 2 / 3]).double()))
    moment = rows(20).T @ rows(20)
    torch.testing.assert_close(cleared(moment @ moment.T, 0.0)[0], moment @ moment.T)


def test_noise_alone_is_cleared_to_an_even_spectrum():
    """A moment of 0.1 everywhere, noise whose spectrum reaches to 4: only its trace can be seen."""
    drawn = torch.randn(400, 400, generator=DRAWS, dtype=torch.float64) / 10
    noise = torch.triu(drawn, 1) + torch.triu(drawn, 1).T + math.sqrt(2) * drawn.diag().diag()
    every = 0.1 * torch.eye(400, dtype=torch.float64)
    left, floor = cleared(every + noise, 4.0)
    assert floor == pytest.approx(0.1, abs=0.02)  # 0.1 sqrt(2 / 400) is the trace's own error
    assert float((left - every).norm()) < 0.1 * float(noise.norm())


def test_with_more_noise_than_sums_the_solution_is_finite():
    known, labels = rows(30), torch.arange(30) % CLASSES
    total = Released.of(known, labels, CLASSES, rows(0))
    drawn = torch.randn(len(total.to_params()[RELEASED]), generator=DRAWS, dtype=torch.float64)
    for noise in (5.0, 50.0, 5e6):
        row = {RELEASED: total.to_params()[RELEASED] + noise * drawn}
        found = classes_of(Released.from_params(row, CLASSES, 4), 30, noise, HERE)
        assert float(torch.linalg.eigvalsh(found.within).min()) > -1e-9 * noise
        solution = solution_of(found)
        assert bool(solution.weight.isfinite().all()) and not bool(solution.prior.any())


def test_a_class_whose_count_is_noise_is_one_that_nobody_has_images_of():
    known, labels = rows(60), torch.arange(60) % 2
    total = Released.of(known, labels, CLASSES, rows(0))
    assert classes_of(total, 60, 0.1, HERE).counts.tolist() == [30, 30, 0]
    nothing = classes_of(total, 60, 1e6, HERE)
    assert nothing.counts.tolist() == [0, 0, 0]
    assert bool(solution_of(nothing).weight.isfinite().all())


def test_a_noisy_mean_is_drawn_to_the_middle():
    known, labels = rows(300), torch.arange(300) % CLASSES
    total = Released.of(known, labels, CLASSES, rows(0))
    clear, drawn = (classes_of(total, 300, noise, HERE) for noise in (0.0, 5.0))
    assert float(drawn.means.norm()) < 0.1 * float(clear.means.norm())


def solution(classes: int = 2, size: int = 4) -> Solution:
    known = torch.cat([EYE[:1].repeat(50, 1), EYE[1:2].repeat(50, 1)])
    labels = torch.arange(100) // 50
    total = Released.of(known, labels, classes, known[:0])
    return solution_of(classes_of(total, 100, 0.01, HERE))


def test_without_any_image_a_site_takes_the_common_answer_and_without_validation_the_usual():
    none = torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)
    known = EYE[:1].float(), torch.tensor([0])
    even = torch.full((2,), 0.5, dtype=torch.float64)
    assert chosen_at_home(solution(), none, none, even).tolist() == [LIKELY, 0.0]
    assert chosen_at_home(solution(), known, none, even).tolist() == [LIKELY, USUAL]


def test_validation_images_decide_how_much_its_own_count():
    other = EYE[:2].float().repeat(30, 1), torch.tensor([1, 0]).repeat(30)
    same = EYE[:2].float().repeat(30, 1), torch.tensor([0, 1]).repeat(30)
    even = torch.full((2,), 0.5, dtype=torch.float64)
    # Its images are labelled the other way round, those that decide too: its own must win.
    temperature, own = chosen_at_home(solution(), other, other, even).tolist()
    assert own >= USUAL
    # Those that decide are as everybody's: its own must not count.
    assert chosen_at_home(solution(), other, same, even).tolist()[1] == 0.0
    made = solution().tempered(temperature, own)
    torch.testing.assert_close(made.weight * temperature, solution().weight * LIKELY)


def test_rows_are_measured_from_the_middle_and_cut():
    """(0.425, 0.1) from (0.15, 0.1) is 0.275 = RADIUS / 2 off; (-0.9, 0.1) is cut to 1."""
    found = shortened(torch.tensor([[0.425, 0.1], [-0.9, 0.1]]), torch.tensor([0.15, 0.1]).double())
    torch.testing.assert_close(found, torch.tensor([[0.5, 0], [-1, 0]]).double(), atol=1e-7, rtol=0)
