"""Class mixes and mixture weights by hand, and on answers whose truth is known."""

import numpy as np
import pytest
import torch
from scipy.stats import dirichlet_multinomial

from fedapp.learn.class_priors import (
    UNINFORMATIVE_STRENGTH,
    class_mix,
    mean_mix,
    mean_mix_of_sums,
    mixture_weights,
    reweighted,
    same_class_pair_sums,
    site_mix,
)

NONE = torch.empty(0, 2)


def doubles(*rows):
    return torch.tensor(rows, dtype=torch.float64)


# --- the class mix --------------------------------------------------------------------------------


def test_with_labels_it_is_their_shares_and_one_image_spread_evenly():
    """(3 + 1/2) / 5 and (1 + 1/2) / 5."""
    assert class_mix(torch.tensor([3, 1]), NONE).tolist() == pytest.approx([0.7, 0.3])


@pytest.mark.parametrize("counts", [[3, 1], [1, 0], [400, 7]])
def test_where_there_is_a_label_answers_change_nothing(counts):
    answers = doubles(*[[0.1, 0.9]] * 500)
    assert torch.equal(
        class_mix(torch.tensor(counts), answers), class_mix(torch.tensor(counts), NONE)
    )


def test_without_labels_and_answers_all_classes_are_equally_frequent():
    assert class_mix(torch.zeros(4), torch.empty(0, 4)).tolist() == pytest.approx([0.25] * 4)


def test_answers_that_say_nothing_leave_an_even_mix():
    found = class_mix(torch.zeros(3), torch.full((5, 3), 1 / 3))
    assert found.tolist() == pytest.approx([1 / 3] * 3)


def test_certain_answers_are_counted_beside_an_even_mix():
    """One and three of four; 0.3 * 4 images, 0.6 of each class: 1.6 and 3.6 of 5.2."""
    answers = doubles([1, 0], [0, 1], [0, 1], [0, 1])
    found = class_mix(torch.zeros(2), answers)
    assert found.tolist() == pytest.approx([1.6 / 5.2, 3.6 / 5.2])


def test_the_fixed_point_by_hand():
    """Three answers (1, 0), one (1/3, 2/3). With r = p / (p + 2 (1 - p)) = p / (2 - p),
    5.2 p = 0.6 + 3 + r, so 5.2 p^2 - 13 p + 7.2 = 0 and p = (13 - sqrt(19.24)) / 10.4."""
    answers = doubles([1, 0], [1, 0], [1, 0], [1 / 3, 2 / 3])
    found = class_mix(torch.zeros(2), answers)
    p = (13 - 19.24**0.5) / 10.4
    assert found.tolist() == pytest.approx([p, 1 - p], abs=1e-9)


def test_the_names_of_classes_and_the_order_of_images_do_not_matter():
    stream = torch.Generator().manual_seed(2)
    answers = torch.rand(40, 3, generator=stream, dtype=torch.float64)
    answers /= answers.sum(1, keepdim=True)
    found, order = class_mix(torch.zeros(3), answers), torch.tensor([2, 0, 1])
    torch.testing.assert_close(class_mix(torch.zeros(3), answers[:, order]), found[order])
    torch.testing.assert_close(class_mix(torch.zeros(3), answers.flip(0)), found)


TRUTH = doubles([0.8, 0.15, 0.05])[0]
GIVEN_CLASS = doubles([0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8])
"""Of each of three classes one of three features is seen, its own in 8 of 10 images."""


def seen(features):
    """The answers of a model for which all classes are equally frequent."""
    return reweighted(GIVEN_CLASS.T[features], torch.ones(3))


def test_em_is_where_the_likelihood_with_the_even_images_is_highest():
    """d/d pi_y of sum_j f_j ln(sum_y pi_y P(j|y)) + sum_y 0.1 ln pi_y is 1.3 for every class."""
    shares = TRUTH @ GIVEN_CLASS
    features = torch.repeat_interleave(torch.arange(3), (2000 * shares).round().long())
    found = class_mix(torch.zeros(3), seen(features))
    slope = GIVEN_CLASS @ (shares / (found @ GIVEN_CLASS)) + 0.1 / found
    assert slope.tolist() == pytest.approx([1.3] * 3, abs=1e-6)
    even = torch.full((3,), 1 / 3)
    assert ((found - even).abs() < (TRUTH - even).abs()).all()  # drawn to the even mix,
    answers = seen(features).mean(0)
    assert (found - TRUTH).abs().max() < (answers - TRUTH).abs().max()  # less than by counting


def test_em_on_drawn_images_finds_what_it_finds_on_all():
    """2000 images. Feature j has the share f_j = 0.1 + 0.7 pi_j; solved for pi_j, its standard
    deviation is sqrt(f_j (1 - f_j) / 2000) / 0.7: 0.015 at most, for f = 0.66, and the even images
    only hold it back. The tolerance is four of them: P(false alarm) < 2e-4.
    """
    stream = torch.Generator().manual_seed(1)
    classes = torch.multinomial(TRUTH, 2000, replacement=True, generator=stream)
    features = torch.multinomial(GIVEN_CLASS[classes], 1, generator=stream)[:, 0]
    shares = (2000 * TRUTH @ GIVEN_CLASS).round().long()
    all_of_them = torch.repeat_interleave(torch.arange(3), shares)
    none = torch.zeros(3)
    found, wanted = class_mix(none, seen(features)), class_mix(none, seen(all_of_them))
    assert (found - wanted).abs().max() < 0.06


@pytest.mark.parametrize("counts", [[0, 0, 0], [5, 0, 0], [0, 1000, 3]])
def test_a_mix_sums_to_1_and_rules_no_class_out(counts):
    certain = doubles(*[[1, 0, 0]] * 50)
    for answers in (torch.empty(0, 3), certain, torch.full((4, 3), 1 / 3)):
        found = class_mix(torch.tensor(counts), answers)
        assert found.dtype == torch.float64
        assert found.sum().item() == pytest.approx(1) and found.min() > 0


# --- an answer times the mix ----------------------------------------------------------------------


def test_a_uniform_mix_changes_no_answer():
    answers = doubles([0.7, 0.2, 0.1], [0, 0, 1])
    torch.testing.assert_close(reweighted(answers, torch.full((3,), 1 / 3)), answers)


def test_an_answer_times_the_mix_by_hand():
    """(0.5 * 0.8, 0.5 * 0.2) and (0.2 * 0.8, 0.8 * 0.2), each over its sum."""
    found = reweighted(doubles([0.5, 0.5], [0.2, 0.8]), doubles(0.8, 0.2))
    torch.testing.assert_close(found, doubles([0.8, 0.2], [0.5, 0.5]))


# --- mixture weights ------------------------------------------------------------------------------


def test_without_images_the_pseudo_counts_decide():
    found = mixture_weights(torch.empty(0, 3), torch.tensor([5.0, 4.0, 1.0]))
    assert found.tolist() == pytest.approx([0.5, 0.4, 0.1])


def test_an_answer_that_is_alone_right_gets_every_image():
    """(1 + 98, 1) of 100."""
    likelihoods = doubles(*[[1, 0]] * 98)
    assert mixture_weights(likelihoods, torch.ones(2)).tolist() == pytest.approx([0.99, 0.01])


def test_equal_answers_keep_the_weights_of_before():
    likelihoods = doubles([0.3, 0.3], [0.9, 0.9], [0.0, 0.0])  # all missed the third
    found = mixture_weights(likelihoods, torch.tensor([3.0, 1.0]))
    assert found.tolist() == pytest.approx([0.75, 0.25])


def test_the_order_of_answers_does_not_matter():
    stream = torch.Generator().manual_seed(1)
    likelihoods, before = torch.rand(30, 3, generator=stream), torch.tensor([5.0, 2.0, 1.0])
    order = torch.tensor([2, 0, 1])
    found = mixture_weights(likelihoods[:, order], before[order])
    torch.testing.assert_close(found, mixture_weights(likelihoods, before)[order])
    assert found.sum().item() == pytest.approx(1) and found.min() >= 0


def test_the_fixed_point_of_the_weights_by_hand():
    """One image, likelihoods (2/3, 1/3), one image each beforehand: 3 a = 1 + 2 a / (1 + a), so
    3 a^2 = 1."""
    found = mixture_weights(doubles([2 / 3, 1 / 3]), torch.ones(2))
    a = 3**-0.5
    assert found.tolist() == pytest.approx([a, 1 - a], abs=1e-9)


# --- the mix from labels, answers and what the federation knows -----------------------------------


def test_the_sites_mix_by_hand():
    """Labels 2 and 0, EM on (1, 0) twice and 0.6 images of an even mix (2.3 and 0.3 of 2.6) as
    three images, a prior of 1 and 3, and a hundredth of an image."""
    answers = doubles([1, 0], [1, 0])
    found = site_mix(torch.tensor([2, 0]), answers, doubles(1, 3))
    wanted = [2 + 3 * 2.3 / 2.6 + 1 + 0.005, 3 * 0.3 / 2.6 + 3 + 0.005]
    assert found.tolist() == pytest.approx([one / 9.01 for one in wanted])
    assert found.dtype == torch.float64


def test_without_answers_the_priors_shares_stand_for_them():
    found = site_mix(torch.tensor([1, 0]), NONE, doubles(2, 6))
    assert found.tolist() == pytest.approx([(1 + 0.75 + 2 + 0.005) / 12.01, 8.255 / 12.01])


def test_where_nobody_knows_anything_all_classes_are_equally_frequent():
    for answers in (torch.empty(0, 4), torch.full((7, 4), 0.25)):
        found = site_mix(torch.zeros(4), answers, torch.zeros(4).double())
        assert found.tolist() == pytest.approx([0.25] * 4)


def test_many_labels_outweigh_all_else():
    found = site_mix(torch.tensor([300_000, 100_000]), doubles([0, 1]), doubles(5, 50))
    assert found.tolist() == pytest.approx([0.75, 0.25], abs=1e-3)


def test_no_class_is_ruled_out():
    found = site_mix(torch.tensor([9, 0]), doubles([1, 0]), doubles(9, 0))
    assert found.min() > 0 and found.sum() == pytest.approx(1)


@pytest.mark.parametrize(("sites", "least"), [(2, UNINFORMATIVE_STRENGTH), (20, 50)])
def test_mixes_that_are_all_alike_are_worth_much(sites, least):
    """Shares 1/4 and 3/4 everywhere: the mean is that, but for an image of each class."""
    found = mean_mix(torch.tensor([[100, 300]] * sites))
    total = 400 * sites + 2
    shares = [(100 * sites + 1) / total, (300 * sites + 1) / total]
    assert (found / found.sum()).tolist() == pytest.approx(shares)
    assert found.sum() > least
    assert found.sum() <= 1000 - UNINFORMATIVE_STRENGTH + 1e-6


def test_more_sites_that_are_alike_say_it_more_surely():
    few, many = (mean_mix(torch.tensor([[10, 30]] * sites)).sum() for sites in (2, 50))
    assert many > few > 0


def test_sites_of_one_class_each_say_nothing_of_each_other():
    found = mean_mix(torch.eye(5, dtype=torch.int64) * 40)
    assert found.tolist() == [0.0] * 5


@pytest.mark.parametrize("counts", [torch.zeros(0, 3), torch.zeros(4, 3)])
def test_without_labels_the_mean_is_worth_nothing(counts):
    """The grid's step next to FEW_ALIKE is 0.012 images above it."""
    found = mean_mix(counts.long())
    assert found.shape == (3,) and 0 <= found.sum() < 0.02


def test_sites_without_labels_and_the_order_of_sites_do_not_matter():
    counts = torch.tensor([[3, 9, 1], [5, 8, 0], [2, 30, 4]])
    more = torch.cat([counts[[2, 0]], torch.zeros(3, 3).long(), counts[[1]]])
    torch.testing.assert_close(mean_mix(more), mean_mix(counts))


def test_one_site_s_mean_is_its_own_mix():
    found = mean_mix(torch.tensor([[30, 10]]))
    assert (found / found.sum()).tolist() == pytest.approx([31 / 42, 11 / 42])
    assert found.isfinite().all() and found.sum() > 0


def test_the_strength_is_the_likeliest_of_the_dirichlet_multinomial():
    """Of a grid of 20 a tenfold, under a log-normal prior around FEW_ALIKE of deviation 1."""
    counts = torch.tensor([[8, 2, 0], [7, 4, 2], [9, 3, 1], [16, 9, 1]])
    mean = ((counts.sum(0) + 1) / (counts.sum() + 3)).numpy()

    def score(s):
        seen = sum(dirichlet_multinomial.logpmf(row, s * mean, row.sum()) for row in counts.numpy())
        return seen - np.log(s / UNINFORMATIVE_STRENGTH) ** 2 / 2

    best = max(np.logspace(-1, 3, 81), key=score)
    assert 6 < best < 500
    assert float(mean_mix(counts).sum()) == pytest.approx(best - UNINFORMATIVE_STRENGTH)


@pytest.mark.parametrize("counts", [[[8, 2]], [[8, 2], [8, 2], [8, 2]]])
def test_few_sites_tell_the_share_of_equal_pairs_no_closer_than_a_hundredth(counts):
    """Sites that are all alike, or one alone, show no variance: it is taken as 10^-4.

    The most likely strength by hand, over the same grid.
    """
    known = torch.tensor(counts)
    sums = [sum(of) for of in zip(*map(same_class_pair_sums, known), strict=True)]
    b, a, *_ = sums
    mean = (known.sum(0).double() + 1) / (int(known.sum()) + 2)
    best, most = 0.0, -np.inf
    for strength in np.logspace(-1, 3, 81):
        q = (strength * float(mean.square().sum()) + 1) / (strength + 1)
        score = -(np.log(strength / UNINFORMATIVE_STRENGTH) ** 2) / 2 - (a / b - q) ** 2 / (
            2 * 1e-4
        )
        best, most = (strength, score) if score > most else (best, most)
    found = mean_mix_of_sums(known.sum(0), sums)
    torch.testing.assert_close(found, mean * max(best - UNINFORMATIVE_STRENGTH, 0))
    assert bool(found.sum() > 0)  # so that it says something
