"""The closed form of noisy sums: by hand, without noise, and with more noise than sums."""

import math
from dataclasses import replace

import pytest
import torch

from fedapp.learn.features.hog import Hog
from fedapp.learn.features.plain import Plain
from fedapp.learn.params import schema_of
from fedapp.methods.closed_form._contents import RELEASED, TOTALS, Solution, released_schemas
from fedapp.methods.closed_form._discriminant import Classes, Sums
from fedapp.methods.closed_form._protected import (
    COUNT_WEIGHT,
    DEFAULT_OWN_WEIGHT,
    FIRST_ROW,
    MOMENT_WEIGHT,
    NOISY_RIDGE,
    OTHER_MOMENT_WEIGHT,
    OTHER_SUM_WEIGHT,
    RADIUS,
    SECOND_ROW,
    SENSITIVITY,
    TEMPERATURE_RATIO,
    Released,
    chosen_at_home,
    classes_of,
    clipped_rows,
    denoised,
    first_row,
    middle_from_rows,
    shrunk_means,
    solution_of,
)

DRAWS = torch.Generator().manual_seed(7)
CLASSES = 3
EYE = torch.eye(4, dtype=torch.float64)
HERE = torch.zeros(4, dtype=torch.float64)
"""A middle."""


def rows(count: int, size: int = 4) -> torch.Tensor:
    found = torch.randn(count, size, generator=DRAWS, dtype=torch.float64)
    return found / found.norm(dim=1, keepdim=True).clamp_min(1.0)


def both(known, labels, other, patients=None) -> torch.Tensor:
    """Everything that a site releases, as one row."""
    first = first_row(torch.cat([known, other]), patients)[TOTALS]
    second = Released.of(known, labels, CLASSES, other, patients).to_params()[RELEASED]
    return torch.cat([first, second])


def test_one_labelled_image_by_hand():
    """f = (0.6, 0.8): f f^T is 0.36, 0.48, 0.64; its row has 0.48 sqrt(2)."""
    f = torch.tensor([[0.6, 0.8]], dtype=torch.float64)
    row = Released.of(f, torch.tensor([1]), 2, f[:0]).to_params()[RELEASED]
    square = [0.36, 0.48 * math.sqrt(2), 0.64]
    of_class = [MOMENT_WEIGHT * one for one in square]
    assert row.tolist() == pytest.approx([0, COUNT_WEIGHT, 0, 0, 0, 0.6, 0.8, 0, 0, *of_class])
    first = first_row(f)[TOTALS]
    assert first.tolist() == pytest.approx([0.06, 0.08, 0.1])
    # |f| = |g| = 1: the bounds are met, by one without a label too.
    assert float(row.norm()) == pytest.approx(SECOND_ROW)
    assert float(first.norm()) == pytest.approx(FIRST_ROW)
    assert math.hypot(float(row.norm()), float(first.norm())) == pytest.approx(SENSITIVITY)
    free = Released.of(f[:0], torch.tensor([], dtype=torch.int64), 2, f).to_params()[RELEASED]
    others = [OTHER_MOMENT_WEIGHT * one for one in square]
    its = OTHER_SUM_WEIGHT * 0.6, OTHER_SUM_WEIGHT * 0.8
    assert free.tolist() == pytest.approx([0, 0, COUNT_WEIGHT, 0, 0, 0, 0, *its, *others])
    assert float(free.norm()) == pytest.approx(SECOND_ROW)


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
    second = MOMENT_WEIGHT * known.T @ known + OTHER_MOMENT_WEIGHT * other.T @ other
    torch.testing.assert_close(back.second, second)
    assert back.counts.tolist() == pytest.approx([3, 3, 3, 5])
    assert back.weight == pytest.approx(9 * MOMENT_WEIGHT + 5 * OTHER_MOMENT_WEIGHT)
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
    middle = middle_from_rows(first_row(torch.cat([known, other]))[TOTALS])
    torch.testing.assert_close(middle, torch.cat([known, other]).mean(0))
    g, more = (clipped_rows(part, middle) for part in (known, other))
    found = classes_of(Released.of(g, labels, CLASSES, more), 0.0, middle)
    # Unlabelled images count more in the covariance, by a number that everybody knows.
    plain = Sums.of(known - middle, labels, CLASSES)
    weight = 300 * MOMENT_WEIGHT + 200 * OTHER_MOMENT_WEIGHT
    apart = known - middle, other - middle
    second = (
        MOMENT_WEIGHT * apart[0].T @ apart[0] + OTHER_MOMENT_WEIGHT * apart[1].T @ apart[1]
    ) / weight
    mean = (MOMENT_WEIGHT * apart[0].sum(0) + OTHER_MOMENT_WEIGHT * apart[1].sum(0)) / weight
    expected = Classes.of(replace(plain, images=500.0, total=500 * mean, second=500 * second))
    torch.testing.assert_close(found.counts, expected.counts)
    torch.testing.assert_close(found.means, middle + expected.means)
    torch.testing.assert_close(found.within, expected.within)
    head = expected.head(expected.level(NOISY_RIDGE))
    torch.testing.assert_close(solution_of(found, 1.0).weight * TEMPERATURE_RATIO, head[0])


def test_the_covariance_is_measured_from_the_mean_of_images_as_they_were_cut():
    """A few far images to one side: the middle is pulled to them, and the cut takes them back."""
    known, labels = 0.02 * rows(200), torch.arange(200) % 2
    known[labels == 1] += 0.1 * EYE[1]
    known[:20] += 0.95 * EYE[0]
    middle = middle_from_rows(first_row(clipped_rows(known))[TOTALS])
    g = clipped_rows(known, middle)
    assert float(g.mean(0).norm()) > 0.02
    exact = Classes.of(Sums.of(g, labels, 2))
    found = classes_of(Released.of(g, labels, 2, g[:0]), 0.0, middle)
    torch.testing.assert_close(found.within, RADIUS**2 * exact.within)
    torch.testing.assert_close(found.means, middle + RADIUS * exact.means)


def test_the_mean_weighs_images_as_the_second_moment_does_by_hand():
    """One with a label at (1, 0), three without at (0, 1); read back from the row."""
    total = Released.of(EYE[:1, :2], torch.tensor([0]), 1, EYE[:1, :2].flip(1).repeat(3, 1))
    mean = torch.tensor([MOMENT_WEIGHT, 3 * OTHER_MOMENT_WEIGHT]).double() / (
        MOMENT_WEIGHT + 3 * OTHER_MOMENT_WEIGHT
    )
    torch.testing.assert_close(Released.from_params(total.to_params(), 1, 2).mean, mean)
    assert not Released.of(EYE[:0], torch.tensor([]).long(), 1, EYE[:0]).mean.any()


def test_a_spectrum_is_cleared_of_noise_by_hand():
    """Radius 2: 5/2 is seen of 2, since 2 + 2^2 / (4 x 2) = 5/2; -1, 1/2 and 2 are hidden."""
    clear = denoised(torch.diag(torch.tensor([2.5, 0.5, -1.0, 2.0])).double(), 2.0)
    assert clear.floor == pytest.approx(2 / 3)  # the trace is 4, of which 2 is seen
    left = torch.diag(torch.tensor([2, 2 / 3, 2 / 3, 2 / 3]).double())
    torch.testing.assert_close(clear.moment, left)
    assert clear.seen.tolist() == [False, False, False, True]  # of ascending eigenvalues
    moment = rows(20).T @ rows(20)
    moment = moment @ moment.T
    torch.testing.assert_close(denoised(moment, 0.0).moment, moment)


def test_noise_alone_is_cleared_to_an_even_spectrum():
    """A moment of 0.1 everywhere, noise whose spectrum reaches to 4: only its trace can be seen."""
    noise_drawn = torch.randn(400, 400, generator=DRAWS, dtype=torch.float64) / 10
    noise = (
        torch.triu(noise_drawn, 1)
        + torch.triu(noise_drawn, 1).T
        + math.sqrt(2) * noise_drawn.diag().diag()
    )
    every = 0.1 * torch.eye(400, dtype=torch.float64)
    clear = denoised(every + noise, 4.0)
    # 0.1 sqrt(2 / 400) is the trace's own error.
    assert clear.floor == pytest.approx(0.1, abs=0.02)
    assert float((clear.moment - every).norm()) < 0.1 * float(noise.norm())


def test_with_more_noise_than_sums_the_solution_is_finite():
    known, labels = rows(30), torch.arange(30) % CLASSES
    total = Released.of(known, labels, CLASSES, rows(0))
    noise_drawn = torch.randn(
        len(total.to_params()[RELEASED]), generator=DRAWS, dtype=torch.float64
    )
    for noise in (5.0, 50.0, 5e6):
        row = {RELEASED: total.to_params()[RELEASED] + noise * noise_drawn}
        found = classes_of(Released.from_params(row, CLASSES, 4), noise, HERE)
        assert float(torch.linalg.eigvalsh(found.within).min()) > -1e-9 * noise
        solution = solution_of(found, 2.0)
        assert bool(solution.weight.isfinite().all()) and not bool(solution.prior.any())


def test_a_class_whose_count_is_noise_is_one_that_nobody_has_images_of():
    known, labels = rows(60), torch.arange(60) % 2
    total = Released.of(known, labels, CLASSES, rows(0))
    assert classes_of(total, 0.1, HERE).counts.tolist() == [30, 30, 0]
    nothing = classes_of(total, 1e6, HERE)
    assert nothing.counts.tolist() == [0, 0, 0]
    assert bool(solution_of(nothing, 2.0).weight.isfinite().all())


def test_a_noisy_mean_is_drawn_to_the_mean_of_all():
    known, labels = rows(300), torch.arange(300) % CLASSES
    total = Released.of(known, labels, CLASSES, rows(0))
    clear, noisy = (classes_of(total, noise, HERE) for noise in (0.0, 5.0))
    apart, little = (found.means - found.means.mean(0) for found in (clear, noisy))
    assert float(little.norm()) < 0.1 * float(apart.norm())


def test_means_are_drawn_by_hand_one_factor_in_each_part():
    """Seen along the first axis, hidden along the others; squares 16 and 1.5, of noise 1 in each.

    16 - 1 of 16 stay there, and 1.5 - 1 of 1.5 here.
    """
    apart = torch.tensor([[4.0, 1.0, 1.0], [-4.0, -1.0, -math.sqrt(3)]]).double()
    erring, counts = torch.tensor([1.0, 1.0]).double(), torch.tensor([9.0, 9.0]).double()
    clear = denoised(torch.diag(torch.tensor([9.0, 0.1, 0.2])).double(), 1.0)
    left = shrunk_means(apart, erring, counts, clear)
    torch.testing.assert_close(left[:, 0], 15 / 16 * apart[:, 0])
    torch.testing.assert_close(left[:, 1:], 1 / 3 * apart[:, 1:])
    none = torch.zeros(2, dtype=torch.float64)
    torch.testing.assert_close(shrunk_means(apart, none, counts, clear), apart)
    assert float(shrunk_means(apart, 1e9 + none, counts, clear).abs().max()) < 1e-9
    # A class of few images is drawn farther, and the others still by one factor.
    more = torch.cat([apart, 1e4 * apart[:1]]), torch.cat([erring, erring[:1] * 1e8])
    few = shrunk_means(*more, torch.cat([counts, counts[:1] / 1e4]), clear)
    factors = few / more[0]
    torch.testing.assert_close(factors[0], factors[1])
    assert 0 < float(factors[0, 1]) < float(factors[0, 0]) < 1
    assert float(factors[2].max()) < 1e-6


# --- patients -------------------------------------------------------------------------------------


def test_patients_of_one_image_each_are_images():
    known, other, labels = rows(9), rows(5), torch.arange(9) % CLASSES
    alone = 7 + 2 * torch.arange(14)
    assert torch.equal(both(known, labels, other, alone), both(known, labels, other))


def test_a_patient_of_equal_images_counts_as_one_of_them_by_hand():
    """Twenty times one image of norm 1: what it adds is that of one, to rounding."""
    f, nobody = rows(1) / rows(1).norm(), rows(0)
    f = f / f.norm()
    one = both(f, torch.tensor([1]), nobody)
    many = both(f.repeat(20, 1), torch.ones(20).long(), nobody, torch.zeros(20).long())
    torch.testing.assert_close(many, one)


def test_what_a_patients_images_add_is_scaled_as_one_and_no_more_than_must_be():
    """Against the row of each patient, written out: a minimum of 1 and bound over length."""
    known, other, labels = rows(30), rows(20), torch.arange(30) % CLASSES
    patients = torch.cat([torch.arange(30) // 7, torch.arange(20) // 4])  # in both parts
    expected, first = torch.zeros_like(both(known, labels, other)), len(HERE) + 1
    for p in patients.unique():
        its = patients == p
        row = both(known[its[:30]], labels[its[:30]], other[its[30:]])
        for part, most in ((slice(first), FIRST_ROW), (slice(first, None), SECOND_ROW)):
            expected[part] += row[part] * min(1.0, most / float(row[part].norm()))
    torch.testing.assert_close(both(known, labels, other, patients), expected)


@pytest.mark.parametrize("seed", range(40))
def test_no_patient_changes_all_that_is_released_by_more_than_the_sensitivity(seed):
    """A canary patient of 1 to 60 images, with labels and without, in and out, beside others'.

    Its images are random, all alike, opposite, of one class, far away, huge or 0: by `clipped_rows`
    they are what a site has in its rows.
    """
    draws = torch.Generator().manual_seed(seed)

    def random(count: int, scale: float = 1.0) -> torch.Tensor:
        return scale * torch.randn(count, 4, generator=draws, dtype=torch.float64)

    count = int(torch.randint(1, 61, (1,), generator=draws))
    kind = seed % 8
    canary = random(count, (0.3, 1.0, 1e150, 1e-150, 1.0, 1.0, 1.0, 0.0)[kind])
    if kind == 4:
        canary = canary[:1].repeat(count, 1)
    if kind == 5:
        canary = canary[:1] * (-1.0) ** torch.arange(count)[:, None]
    labelled = int(torch.randint(0, count + 1, (1,), generator=draws))
    if kind == 6:
        labelled = count
    its = torch.randint(0, CLASSES, (labelled,), generator=draws)
    its = its * 0 if kind in (4, 6) else its
    others, free = random(40), random(30)
    labels, whose = torch.arange(40) % CLASSES, torch.arange(70) // 3
    middle = random(1)[0] / 4

    def released(known, labels, other, patients):
        first = first_row(torch.cat([clipped_rows(known), clipped_rows(other)]), patients)[TOTALS]
        g, more = clipped_rows(known, middle), clipped_rows(other, middle)
        second = Released.of(g, labels, CLASSES, more, patients).to_params()[RELEASED]
        return first, second

    gone = released(others, labels, free, whose)
    there = released(
        torch.cat([others, canary[:labelled]]),
        torch.cat([labels, its]),
        torch.cat([free, canary[labelled:]]),
        torch.cat([whose[:40], torch.full((labelled,), 99), whose[40:],
                   torch.full((count - labelled,), 99)]),
    )  # fmt: skip
    change = [float((a - b).norm()) for a, b in zip(there, gone, strict=True)]
    assert change[0] <= FIRST_ROW + 1e-12 and change[1] <= SECOND_ROW + 1e-12
    assert math.hypot(*change) <= SENSITIVITY + 1e-12
    if count > 1 and kind in (1, 4):  # and by image it would be by more
        by_image = released(
            torch.cat([others, canary[:labelled]]), torch.cat([labels, its]),
            torch.cat([free, canary[labelled:]]), None,
        )  # fmt: skip
        alone = released(others, labels, free, None)
        lengths = [float((a - b).norm()) for a, b in zip(by_image, alone, strict=True)]
        assert math.hypot(*lengths) > SENSITIVITY


def test_numbers_that_are_scaled_along_make_the_same_solution():
    """Each image twenty times, by one patient each: means and covariance of the images once."""
    known, labels = rows(300) / 2, torch.arange(300) % CLASSES
    known[labels == 1] += 0.2 * EYE[0]
    known /= known.norm(dim=1, keepdim=True)
    once = classes_of(Released.of(known, labels, CLASSES, rows(0)), 0.0, HERE)
    many = Released.of(
        known.repeat_interleave(20, 0),
        labels.repeat_interleave(20),
        *(CLASSES, rows(0), torch.arange(300).repeat_interleave(20)),
    )
    found = classes_of(many, 0.0, HERE)
    torch.testing.assert_close(found.means, once.means)
    torch.testing.assert_close(found.within, once.within)
    torch.testing.assert_close(found.counts, once.counts)


def solution(default_temperature: float = 2.0) -> Solution:
    known = torch.cat([EYE[:1].repeat(50, 1), EYE[1:2].repeat(50, 1)])
    labels = torch.arange(100) // 50
    total = Released.of(known, labels, 2, known[:0])
    return solution_of(classes_of(total, 0.01, HERE), default_temperature)


@pytest.mark.parametrize(("features", "usual"), [(Hog, 6.0), (Plain, 3.0)])
def test_without_any_image_a_site_takes_the_common_answer_and_without_validation_the_usual(
    features, usual
):
    """The usual temperature is three times that of the features: tables are not images."""
    none = torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)
    known = EYE[:1].float(), torch.tensor([0])
    even = torch.full((2,), 0.5, dtype=torch.float64)
    made = solution(features.default_temperature)
    assert chosen_at_home(made, none, none, even).tolist() == [usual, 0.0]
    assert chosen_at_home(made, known, none, even).tolist() == [usual, DEFAULT_OWN_WEIGHT]


def test_validation_images_decide_how_much_its_own_count():
    other = EYE[:2].float().repeat(30, 1), torch.tensor([1, 0]).repeat(30)
    same = EYE[:2].float().repeat(30, 1), torch.tensor([0, 1]).repeat(30)
    even = torch.full((2,), 0.5, dtype=torch.float64)
    # Its images are labelled the other way round, those that decide too: its own must win.
    temperature, own = chosen_at_home(solution(), other, other, even).tolist()
    assert own >= DEFAULT_OWN_WEIGHT
    # Those that decide are as everybody's: its own must not count.
    assert chosen_at_home(solution(), other, same, even).tolist()[1] == 0.0
    made = solution().tempered(temperature, own)
    torch.testing.assert_close(
        made.weight * temperature, solution().weight * solution().temperature
    )


def test_rows_are_measured_from_the_middle_and_cut():
    """(0.45, 0.1) from (0.15, 0.1) is 0.3 = RADIUS / 2 off; (-0.9, 0.1) is cut to 1."""
    found = clipped_rows(
        torch.tensor([[0.45, 0.1], [-0.9, 0.1]]), torch.tensor([0.15, 0.1]).double()
    )
    torch.testing.assert_close(found, torch.tensor([[0.5, 0], [-1, 0]]).double(), atol=1e-7, rtol=0)
