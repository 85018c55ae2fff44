"""Class mixes and mixture weights by hand, and on answers whose truth is known."""

import pytest
import torch

from fedapp.priors import class_mix, mixture_weights, weighted

NONE = torch.empty(0, 2)


def doubles(*rows):
    return torch.tensor(rows, dtype=torch.float64)


# --- the class mix --------------------------------------------------------------------------------


def test_without_answers_it_is_the_counts_and_one_image_spread_evenly():
    """(3 + 1/2) / 5 and (1 + 1/2) / 5."""
    assert class_mix(torch.tensor([3, 1]), NONE).tolist() == pytest.approx([0.7, 0.3])


def test_without_labels_and_answers_all_classes_are_equally_frequent():
    assert class_mix(torch.zeros(4), torch.empty(0, 4)).tolist() == pytest.approx([0.25] * 4)


def test_certain_answers_count_like_labels():
    answers = doubles([1, 0], [0, 1], [0, 1], [0, 1])
    expected = class_mix(torch.tensor([4, 4]), NONE)
    torch.testing.assert_close(class_mix(torch.tensor([3, 1]), answers), expected)


def test_answers_that_say_nothing_leave_the_labelled_shares():
    """A uniform answer takes the shares as they are: the fixed point is that without it."""
    counts = torch.tensor([7, 2, 0])
    found = class_mix(counts, torch.full((5, 3), 1 / 3))
    torch.testing.assert_close(found, class_mix(counts, torch.empty(0, 3)), rtol=1e-6, atol=1e-9)


def test_the_fixed_point_by_hand():
    """Three answers (1, 0), one (1/3, 2/3), no labels. With r = p / (p + 2 (1 - p)) = p / (2 - p),
    5 p = 1/2 + 3 + r, so 10 p^2 - 25 p + 14 = 0 and p = (25 - sqrt(65)) / 20."""
    answers = doubles([1, 0], [1, 0], [1, 0], [1 / 3, 2 / 3])
    found = class_mix(torch.zeros(2), answers)
    p = (25 - 65**0.5) / 20
    assert found.tolist() == pytest.approx([p, 1 - p], abs=1e-9)


def test_em_finds_the_true_mix():
    """2000 images of three classes; one of three features is seen of each, its own in 8 of 10.

    Feature j has the share f_j = 0.1 + 0.7 pi_j, so pi_j has the standard deviation
    sqrt(f_j (1 - f_j) / 2000) / 0.7: 0.015 at most, for f = 0.66. The tolerance is four of them:
    P(false alarm) < 1e-4.
    """
    truth = doubles(0.8, 0.15, 0.05)
    given_class = doubles([0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8])
    stream = torch.Generator().manual_seed(1)
    classes = torch.multinomial(truth, 2000, replacement=True, generator=stream)
    features = torch.multinomial(given_class[classes], 1, generator=stream)[:, 0]
    answers = weighted(given_class.T[features], torch.ones(3))  # classes equally frequent
    found = class_mix(torch.zeros(3), answers)
    assert (found - truth).abs().max() < 0.06
    solved = (torch.bincount(features) / 2000 - 0.1) / 0.7
    assert (found - solved).abs().max() < 0.005  # but for the one image spread evenly
    assert (answers.mean(0) - truth).abs().max() > 0.1  # counting the answers is no estimate


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
    torch.testing.assert_close(weighted(answers, torch.full((3,), 1 / 3)), answers)


def test_an_answer_times_the_mix_by_hand():
    """(0.5 * 0.8, 0.5 * 0.2) and (0.2 * 0.8, 0.8 * 0.2), each over its sum."""
    found = weighted(doubles([0.5, 0.5], [0.2, 0.8]), doubles(0.8, 0.2))
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
