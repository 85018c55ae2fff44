"""MC dropout: by hand, degenerate, extremes, and the shared trunk against whole passes."""

import math

import pytest
import torch

from fedapp.models import ResNet9
from fedapp.rng import seeded
from fedapp.uncertainty import entropy, mc_dropout, mc_probabilities

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


def test_without_dropout_mc_is_the_plain_softmax():
    model, images = small(dropout=0.0), pictures(5)
    model.eval()
    plain = torch.softmax(model(scale(images)), 1)
    torch.testing.assert_close(mc_probabilities(model, images, 7, scale), plain)


def test_one_pass_is_one_whole_forward_pass_with_the_same_draw():
    model, images = small(), pictures(6)
    with seeded(CPU, 3, "pass"):
        shared = mc_probabilities(model, images, 1, scale)
    with seeded(CPU, 3, "pass"), mc_dropout(model), torch.no_grad():
        whole = torch.softmax(model(scale(images)), 1)
    assert torch.equal(shared, whole)


def test_shared_trunk_has_the_distribution_of_whole_passes():
    """Means over 4000 passes each way differ by less than 5.5 standard errors in all 6 entries.

    False alarm: two-sided 5.5 sigma is 3.8e-8 per entry, below 3e-7 for the test.
    """
    model, images, passes = small(), pictures(2), 4000
    with seeded(CPU, 5, "whole"), mc_dropout(model), torch.no_grad():
        whole = torch.stack([torch.softmax(model(scale(images)), 1) for _ in range(passes)])
    with seeded(CPU, 6, "shared"):
        shared = mc_probabilities(model, images, passes, scale)
    error = (whole.var(0) * 2 / passes).sqrt()
    assert whole.std(0).min() > 1e-4  # dropout does something
    assert bool(((shared - whole.mean(0)).abs() < 5.5 * error + 1e-6).all())


def test_rows_sum_to_one_and_no_images_give_no_rows():
    model = small()
    rows = mc_probabilities(model, pictures(1001), 3, scale)  # more than two scoring batches
    torch.testing.assert_close(rows.sum(1), torch.ones(1001))
    assert mc_probabilities(model, pictures(0), 3, scale).shape == (0, 3)


def test_mc_dropout_restores_every_mode_and_leaves_batch_norm_alone():
    model = small()
    model.train()
    model.stem.eval()
    before = {name: m.training for name, m in model.named_modules()}
    statistics = model.res2[1].norm.running_mean.clone()
    mc_probabilities(model, pictures(3), 2, scale)
    assert before == {name: m.training for name, m in model.named_modules()}
    assert torch.equal(statistics, model.res2[1].norm.running_mean)
