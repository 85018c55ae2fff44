"""Coordinates from images that nobody has: by hand, where all is even already, extremes."""

import math
from types import SimpleNamespace

import pytest
import torch

from fedapp.learn.features import build_features
from fedapp.methods.closed_form._features import (
    RMS_LENGTH,
    SYNTHETIC_BATCH,
    VARIANCE_FLOOR,
    Coordinates,
    synthetic_images,
)

HERE = torch.tensor([0.3, 0.1], dtype=torch.float64)


def diagonal(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).diag()


def test_two_directions_by_hand():
    """Variances 1.9 and 0.1 have mean 1: with EVEN = 0.1 of it they are 2 and 0.2."""
    assert VARIANCE_FLOOR == 0.1
    made = Coordinates.of(HERE, diagonal(1.9, 0.1))
    across, along = 1 / math.sqrt(2), 1 / math.sqrt(0.2)
    length = math.sqrt(1.9 / 2 + 0.1 / 0.2)
    wanted = diagonal(across, along) * RMS_LENGTH / length
    torch.testing.assert_close(made.turned, wanted)
    there = HERE + torch.tensor([1.0, 2.0])
    torch.testing.assert_close(
        made.seen(there[None].float())[0].double(), wanted @ torch.tensor([1.0, 2.0]).double(),
        atol=1e-6, rtol=0,
    )  # fmt: skip


def test_where_all_is_even_already_nothing_is_turned():
    made = Coordinates.of(HERE, 0.02 * torch.eye(2, dtype=torch.float64))
    torch.testing.assert_close(made.turned, RMS_LENGTH / 0.2 * torch.eye(2, dtype=torch.float64))


def test_a_direction_that_no_image_has_stays_finite_and_so_do_images_that_are_all_alike():
    made = Coordinates.of(HERE, diagonal(1.0, 0.0))
    ratio = float(made.turned[1, 1] / made.turned[0, 0])
    assert ratio == pytest.approx(math.sqrt((1 + VARIANCE_FLOOR / 2) / (VARIANCE_FLOOR / 2)))
    assert bool(Coordinates.of(HERE, diagonal(0.0, 0.0)).turned.isfinite().all())


def test_a_head_over_features_has_the_logits_of_the_one_over_coordinates():
    draws = torch.Generator().manual_seed(3)
    half = torch.randn(5, 5, generator=draws, dtype=torch.float64)
    made = Coordinates.of(half[0], half @ half.T)
    head = torch.randn(3, 5, generator=draws), torch.randn(3, generator=draws)
    f = torch.randn(20, 5, generator=draws)
    over = made.over_features(head)
    wanted = made.seen(f) @ head[0].T + head[1]
    torch.testing.assert_close(f @ over[0].T + over[1], wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("inputs", [(1, 14, 14), (3, 8, 12), (7,)])
def test_made_up_images_are_everybodys_standardised_and_smooth(inputs):
    some = synthetic_images(inputs, 3, 0)
    assert some.shape == (SYNTHETIC_BATCH, *inputs) and some.dtype == torch.float32
    assert torch.equal(some, synthetic_images(inputs, 3, 0))
    assert not torch.equal(some, synthetic_images(inputs, 3, 1))
    assert not torch.equal(some, synthetic_images(inputs, 4, 0))
    flat = some.flatten(1)
    torch.testing.assert_close(flat.mean(1), torch.zeros(SYNTHETIC_BATCH), atol=1e-5, rtol=0)
    torch.testing.assert_close(flat.std(1, correction=0), torch.ones(SYNTHETIC_BATCH))
    if len(inputs) == 3:  # neighbours are alike, images of independent numbers have 0
        assert float((some[..., 1:] * some[..., :-1]).mean()) > 0.5


def test_of_made_up_images_coordinates_have_the_spread_and_differ_less_by_direction():
    hog = build_features("hog", (1, 14, 14))
    data = SimpleNamespace(inputs=(1, 14, 14), mean=(0.3,), std=(0.4,))
    made = Coordinates.made(hog, data, 5, "hog")
    assert made is Coordinates.made(hog, data, 5, "hog")
    # Neither brightness nor contrast counts for these features.
    features = torch.cat([hog.of(synthetic_images(data.inputs, 5, k)) for k in range(20)])
    seen = made.seen(features).double()
    torch.testing.assert_close(seen.mean(0), torch.zeros(hog.size).double(), atol=1e-5, rtol=0)
    assert float(seen.square().sum(1).mean()) == pytest.approx(RMS_LENGTH**2, rel=1e-3)
    before, after = (torch.linalg.eigvalsh(torch.cov(x.T)) for x in (features.double(), seen))
    assert float(after[-1] / after.mean()) < 0.2 * float(before[-1] / before.mean())
