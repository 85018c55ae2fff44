"""Passes of MC dropout as one batch: the numbers and the distribution of one after the other."""

import pytest
import torch
from scipy.stats import ks_2samp

from fedapp.core.rng import seeded
from fedapp.learn.networks.resnet9 import ResNet9
from fedapp.learn.uncertainty import dropout_sample, passes_in_turn, passes_together

CPU = torch.device("cpu")
PASSES = 6


@pytest.fixture(scope="module")
def model():
    with seeded(CPU, 0, "test model"):
        return ResNet9(1, 3, width=4, dropout=0.5).eval()


def features(model, count):
    images = torch.rand((count, 1, 8, 8), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        return model.trunk(images)


class Masks:
    """The masks of every pass, two a pass, in the order in which they are asked for."""

    def __init__(self, shape, together):
        stream = torch.Generator().manual_seed(2)
        drawn = torch.rand((2, PASSES, *shape), generator=stream) < 0.5
        flat = [m for a, b in zip(*drawn, strict=True) for m in (a, b)]
        self._next = iter([torch.cat(list(each)) for each in drawn] if together else flat)

    def __call__(self, x, p):
        return x * next(self._next) * 2


@torch.inference_mode()
def test_with_the_same_masks_the_answers_differ_by_rounding_alone(model):
    """To 1e-6 of probabilities: float32, six passes."""
    given = features(model, 5)
    turn = passes_in_turn(model, given, PASSES, Masks(given[0].shape, together=False))
    batch = passes_together(model, given, PASSES, Masks(given[0].shape, together=True))
    torch.testing.assert_close(batch, turn, rtol=0, atol=1e-6)


@torch.inference_mode()
@pytest.mark.parametrize("rows", [1, 5, 10, 29, 30, 1000])
def test_without_dropout_every_size_of_batch_gives_the_plain_answer(model, rows):
    given = features(model, 5)
    plain = torch.softmax(model.tail(given), 1)
    mean = passes_together(model, given, PASSES, lambda x, p: x, rows)
    torch.testing.assert_close(mean, plain)


@torch.inference_mode()
def test_no_images_give_no_rows(model):
    given = features(model, 0)
    assert passes_together(model, given, PASSES, dropout_sample).shape == (0, 3)


@torch.inference_mode()
def test_single_passes_have_the_distribution_of_one_after_the_other(model):
    """Kolmogorov-Smirnov, 2000 means of 2 passes each way; false alarm 1e-7 for each of 3 classes.

    Were a mask shared by the passes of an image, the means would spread as single passes do.
    """
    given = tuple(each.expand(2000, -1, -1, -1) for each in features(model, 1))
    with seeded(CPU, 3, "turn"):
        turn, single = (passes_in_turn(model, given, n, dropout_sample) for n in (2, 1))
    with seeded(CPU, 4, "batch"):
        batch = passes_together(model, given, 2, dropout_sample)
    for c in range(3):
        assert ks_2samp(turn[:, c], batch[:, c]).pvalue > 1e-7
        assert ks_2samp(single[:, c], batch[:, c]).pvalue < 1e-7


@pytest.mark.cuda
@torch.inference_mode()
def test_a_gpu_draws_each_pass_anew():
    """Means of 4000 passes; 0.06 is over 5 standard errors of a difference of any answers."""
    device = torch.device("cuda")
    with seeded(CPU, 0, "test model"):
        model = ResNet9(1, 3, width=4, dropout=0.5).eval()
    given = tuple(each.to(device) for each in features(model, 4))
    model.to(device)
    answers = [passes_together(model, given, n, dropout_sample) for n in (1, 1, 4000)]
    assert not torch.equal(answers[0], answers[1])
    expected = passes_in_turn(model, given, 4000, dropout_sample)
    torch.testing.assert_close(answers[2], expected, rtol=0, atol=0.06)
