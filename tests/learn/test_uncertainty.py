"""MC dropout: by hand, degenerate, extremes, and the shared trunk against whole passes."""

import math

import pytest
import torch
from scipy.stats import ks_2samp
from torch import nn

from fedapp.core.rng import seeded
from fedapp.learn.networks.resnet9 import ResNet9
from fedapp.learn.uncertainty import (
    CACHE_BATCH,
    SCORING_BATCH,
    dropout_sample,
    entropy,
    entropy_decomposition,
    features_of,
    inputs_per_pass,
    mc_probabilities,
    passes_in_turn,
    passes_together,
)

CPU = torch.device("cpu")


def scale(images):
    return images.float() / 255


def small(dropout=0.5, classes=3):
    with seeded(CPU, 0, "test model"):
        return ResNet9(1, classes, width=4, dropout=dropout)


def pictures(count):
    stream = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (count, 1, 8, 8), dtype=torch.uint8, generator=stream)


def test_entropy_by_hand():
    # -(1/2 ln 1/2 + 1/4 ln 1/4 + 1/4 ln 1/4) = 3/2 ln 2
    assert entropy(torch.tensor([0.5, 0.25, 0.25])).item() == pytest.approx(1.5 * math.log(2))


def test_entropy_extremes():
    assert entropy(torch.tensor([0.0, 1.0, 0.0])).item() == 0.0
    assert entropy(torch.full((10,), 0.1)).item() == pytest.approx(math.log(10))
    assert entropy(torch.tensor([1e-38, 1.0])).isfinite()


def whole_passes(model, images, passes):
    """The plain reading of Eq. 9: every sample is a forward pass of the whole network."""
    model.eval()
    model.dropout.train()
    with torch.no_grad():
        return torch.stack([torch.softmax(model(scale(images)), 1) for _ in range(passes)])


def test_a_sample_is_one_whole_pass_with_the_same_masks(monkeypatch):
    class Fixed(nn.Module):
        p = 0.5

        def forward(self, x):
            return x * (torch.arange(x.numel()) % 3 > 0).view_as(x) * 2

    model, images = small(), pictures(6)
    model.dropout = Fixed()
    monkeypatch.setattr("fedapp.learn.uncertainty.dropout_sample", lambda x, p: model.dropout(x))
    [whole] = whole_passes(model, images, 1)
    assert torch.equal(mc_probabilities(model, images, 1, scale), whole)
    torch.testing.assert_close(mc_probabilities(model, images, 3, scale), whole)


def test_single_samples_have_the_distribution_of_whole_passes():
    """Kolmogorov-Smirnov, 4000 samples each way, for each of 3 classes.

    False alarm: 1e-7 per class. A dropout rate of 0.4 in place of 0.5 is told apart.
    """
    model, copies = small(), pictures(1).expand(4000, -1, -1, -1)
    with seeded(CPU, 7, "whole"):
        [whole] = whole_passes(model, copies, 1)
    with seeded(CPU, 8, "ours"):
        ours = mc_probabilities(model, copies, 1, scale)
        model.dropout.p = 0.4
        other = mc_probabilities(model, copies, 1, scale)
    for c in range(3):
        assert ks_2samp(whole[:, c], ours[:, c]).pvalue > 1e-7
        assert ks_2samp(whole[:, c], other[:, c]).pvalue < 1e-7


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_keeps_each_value_by_itself_with_probability_1_minus_p(p, dtype):
    """The kept share and its correlation with the neighbours are within 5.5 standard errors.

    False alarm: 3.8e-8 for each of three sums, below 7e-7 for all six cases.
    """
    x = torch.full((50, 16, 8, 8), 3.0, dtype=dtype).contiguous(memory_format=torch.channels_last)
    with seeded(CPU, 9, "mask"):
        out = dropout_sample(x, p)
    assert out.dtype == dtype and out.stride() == x.stride()
    kept = out != 0
    torch.testing.assert_close(out[kept].float(), torch.full_like(out[kept], 3 / (1 - p)).float())
    centred = (kept.double() - (1 - p)) / math.sqrt(p * (1 - p))
    beside = (centred[:, 1:] * centred[:, :-1], centred[1:] * centred[:-1])
    for independent in (centred, *beside):
        assert abs(independent.sum()) < 5.5 * math.sqrt(independent.numel())


@pytest.mark.parametrize("count", [1, 2, CACHE_BATCH, CACHE_BATCH + 1, 3 * CACHE_BATCH - 1])
def test_pieces_of_the_trunk_give_what_one_piece_gives(count):
    """To 1e-5, float32 rounding: a CPU's library may choose another kernel for another size."""
    model, images = small().eval(), pictures(count)
    with torch.no_grad():
        whole = model.trunk(scale(images))
    for piece, expected in zip(features_of(model, images, scale), whole, strict=True):
        torch.testing.assert_close(piece, expected, rtol=1e-5, atol=1e-5)


def test_rows_sum_to_one_and_no_images_give_no_rows():
    model = small()
    rows = mc_probabilities(model, pictures(1001), 3, scale)  # more than two scoring batches
    torch.testing.assert_close(rows.sum(1), torch.ones(1001))
    assert mc_probabilities(model, pictures(0), 3, scale).shape == (0, 3)


def test_scoring_leaves_batch_norm_alone():
    model = small()
    model.train()
    statistics = model.res2[1].norm.running_mean.clone()
    mc_probabilities(model, pictures(3), 2, scale)
    assert torch.equal(statistics, model.res2[1].norm.running_mean)


def test_what_entropy_is_made_of_by_hand():
    """Two models: (1, 0) and (1/2, 1/2). H(3/4, 1/4), less half of ln 2, is their contradiction."""
    total, mutual = entropy_decomposition(
        torch.tensor([[[1.0, 0.0]], [[0.5, 0.5]]]), torch.tensor([0.5, 0.5])
    )
    wanted = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert total.item() == pytest.approx(wanted)
    assert mutual.item() == pytest.approx(wanted - math.log(2) / 2)


def test_sure_models_that_contradict_each_other_have_nothing_else():
    """And a model of weight 0 does not count."""
    sure = torch.eye(3)[[0, 1, 2], None]
    total, mutual = entropy_decomposition(sure, torch.tensor([0.5, 0.5, 0.0]))
    assert total.item() == mutual.item() == pytest.approx(math.log(2))
    assert entropy_decomposition(sure, torch.tensor([1.0, 0.0, 0.0]))[1].item() == 0


def test_of_large_images_fewer_are_asked_at_once():
    assert (
        inputs_per_pass((1, 28, 28))
        == inputs_per_pass((3, 96, 96))
        == inputs_per_pass((64,))
        == SCORING_BATCH
        == 500
    )
    assert inputs_per_pass((3, 224, 224)) == 91 and inputs_per_pass((3, 512, 512)) == 17
    assert inputs_per_pass((3, 10_000, 10_000)) == 1


# --- several passes as one batch ------------------------------------------------------------------

PASSES = 6


@pytest.fixture(scope="module")
def model():
    return small().eval()


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
    assert passes_together(model, features(model, 0), PASSES, dropout_sample).shape == (0, 3)


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
    network, device = small().eval(), torch.device("cuda")
    given = tuple(each.to(device) for each in features(network, 4))
    network.to(device)
    answers = [passes_together(network, given, n, dropout_sample) for n in (1, 1, 4000)]
    assert not torch.equal(answers[0], answers[1])
    expected = passes_in_turn(network, given, 4000, dropout_sample)
    torch.testing.assert_close(answers[2], expected, rtol=0, atol=0.06)
