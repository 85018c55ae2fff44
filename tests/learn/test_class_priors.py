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


@pytest.mark.parametrize("answers", [NONE, doubles(*[[0.1, 0.9]] * 500)])
def test_with_labels_it_is_their_shares_and_one_image_spread_evenly(answers):
    """(3 + 1/2) / 5 and (1 + 1/2) / 5, whatever the answers."""
    assert class_mix(torch.tensor([3, 1]), answers).tolist() == pytest.approx([0.7, 0.3])


@pytest.mark.parametrize("answers", [torch.empty(0, 4), torch.full((5, 4), 0.25)])
def test_where_nothing_is_known_all_classes_are_equally_frequent(answers):
    assert class_mix(torch.zeros(4), answers).tolist() == pytest.approx([0.25] * 4)
    found = site_mix(torch.zeros(4), answers, torch.zeros(4).double())
    assert found.tolist() == pytest.approx([0.25] * 4)


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


@pytest.mark.parametrize("counts", [[0, 0, 0], [5, 0, 0], [0, 1000, 3]])
def test_a_mix_sums_to_1_and_rules_no_class_out(counts):
    certain = doubles(*[[1, 0, 0]] * 50)
    for answers in (torch.empty(0, 3), certain, torch.full((4, 3), 1 / 3)):
        found = class_mix(torch.tensor(counts), answers)
        assert found.dtype == torch.float64
        assert found.sum().item() == pytest.approx(1) and found.min() > 0


# --- an answer times the mix ----------------------------------------------------------------------


def test_an_answer_times_the_mix_by_hand():
    """(0.5 * 0.8, 0.5 * 0.2) and (0.2 * 0.8, 0.8 * 0.2), each over its sum."""
    found = reweighted(doubles([0.5, 0.5], [0.2, 0.8]), doubles(0.8, 0.2))
    torch.testing.assert_close(found, doubles([0.8, 0.2], [0.5, 0.5]))


# --- mixture weights ------------------------------------------------------------------------------


@pytest.mark.parametrize(("likelihoods", "pseudo_counts", "weights"), [
    (torch.empty(0, 3), [5.0, 4.0, 1.0], [0.5, 0.4, 0.1]),  # without images
    (doubles(*[[1, 0]] * 98), [1.0, 1.0], [0.99, 0.01]),  # (1 + 98, 1) of 100
    (doubles([0.3, 0.3], [0.9, 0.9], [0.0, 0.0]), [3.0, 1.0], [0.75, 0.25]),  # equal answers
    (doubles([2 / 3, 1 / 3]), [1.0, 1.0], [3**-0.5, 1 - 3**-0.5]),  # 3 a = 1 + 2 a / (1 + a)
    (doubles([0.3], [0.0]), [2.0], [1.0]),  # one answer has all of it
])  # fmt: skip
def test_mixture_weights_by_hand(likelihoods, pseudo_counts, weights):
    found = mixture_weights(likelihoods, torch.tensor(pseudo_counts))
    assert found.tolist() == pytest.approx(weights, abs=1e-9)


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


@pytest.mark.parametrize(("sites", "least"), [(2, UNINFORMATIVE_STRENGTH), (20, 50)])
def test_mixes_that_are_all_alike_are_worth_much(sites, least):
    """Shares 1/4 and 3/4 everywhere: the mean is that, but for an image of each class."""
    found = mean_mix(torch.tensor([[100, 300]] * sites))
    total = 400 * sites + 2
    shares = [(100 * sites + 1) / total, (300 * sites + 1) / total]
    assert (found / found.sum()).tolist() == pytest.approx(shares)
    assert found.sum() > least
    assert found.sum() <= 1000 - UNINFORMATIVE_STRENGTH + 1e-6


def test_sites_of_one_class_each_say_nothing_of_each_other():
    found = mean_mix(torch.eye(5, dtype=torch.int64) * 40)
    assert found.tolist() == [0.0] * 5


@pytest.mark.parametrize("counts", [torch.zeros(0, 3), torch.zeros(4, 3)])
def test_without_labels_the_mean_is_worth_nothing(counts):
    """The grid's step next to FEW_ALIKE is 0.012 images above it."""
    found = mean_mix(counts.long())
    assert found.shape == (3,) and 0 <= found.sum() < 0.02


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
