"""A pooled data set: its rules, its normalisation, and arithmetic on its images."""

import numpy as np
import pytest
import torch

from fedapp.core.errors import DataError
from fedapp.data.inputs import DataSet, channel_stats, normalise, resize


def fields(**changes):
    good = {
        "inputs": torch.zeros(3, 1, 8, 8, dtype=torch.uint8),
        "labels": torch.tensor([0, 1, 0]),
        "classes": ("a", "b"),
        "mean": (0.5,),
        "std": (0.5,),
    }
    return good | changes


@pytest.mark.parametrize(("changes", "says"), [
    ({"inputs": torch.zeros(3, 1, 8, 8).double()}, r"float64 \[3, 1, 8, 8\], must be uint8"),
    ({"inputs": torch.zeros(3)}, r"float32 \[N, D\]"),
    ({"inputs": torch.zeros(3, 0)}, "no dimension 0"),
    ({"inputs": torch.tensor([[0.0], [1.0], [float("nan")]])}, "NaN or infinity"),
    ({"inputs": torch.zeros(3, 2)}, "must have 2, one per channel"),
    ({"inputs": torch.zeros(3, 8, 8, dtype=torch.uint8)}, "uint8"),
    ({"inputs": torch.zeros(0, 1, 8, 8, dtype=torch.uint8)}, "no images"),
    ({"inputs": torch.zeros(3, 2, 8, 8, dtype=torch.uint8)}, "2 channels"),
    ({"inputs": torch.zeros(3, 1, 7, 8, dtype=torch.uint8)}, r"7 x 8 pixels.*data\.image_size"),
    ({"inputs": torch.zeros(3, 1, 8, 513, dtype=torch.uint8)}, "8 x 513 pixels"),
    ({"labels": torch.tensor([0, 1])}, r"int64 \[3\]"),
    ({"labels": torch.tensor([0.0, 1.0, 0.0])}, "float32"),
    ({"labels": torch.tensor([0, 2, 0])}, r"\[0, 2\], must lie in \[0, 1\]"),
    ({"labels": torch.tensor([0, -2, 0])}, r"\[-2, 0\]"),
    ({"labels": torch.tensor([-1, -1, -1])}, "no input has a known class"),
    ({"mean": (0.5, 0.5)}, "one per channel"),
    ({"std": (0.0,)}, "std above 0"),
    ({"mean": (float("nan"),)}, "finite"),
])  # fmt: skip
def test_a_set_that_breaks_a_rule_is_refused(changes, says):
    with pytest.raises(DataError, match=says) as caught:
        DataSet(**fields(**changes))
    assert "\n" not in str(caught.value)


def test_normalise_by_hand():
    images = torch.tensor([0, 255, 51], dtype=torch.uint8).view(1, 3, 1, 1).expand(2, 3, 8, 8)
    mean, std = (0.5, 0.5, 0.2), (0.5, 0.25, 0.1)
    out = normalise(images, mean, std)
    assert out.dtype == torch.float32 and out.shape == (2, 3, 8, 8)
    assert out[1, :, 3, 3].tolist() == pytest.approx([-1.0, 2.0, 0.0], abs=1e-6)
    assert normalise(images[:0], mean, std).shape == (0, 3, 8, 8)


def test_normalise_every_grey_level():
    levels = torch.arange(256, dtype=torch.uint8).view(256, 1, 1, 1)
    expected = (np.arange(256) / 255 - 0.2860) / 0.3530
    out = normalise(levels, (0.2860,), (0.3530,)).flatten().numpy()
    assert np.allclose(out, expected, rtol=0, atol=1e-6)
    assert levels.flatten().tolist() == list(range(256))  # the images are left as they are


def test_channel_stats_by_hand():
    images = torch.tensor([0, 255, 0, 255] + [51] * 4 + [0, 0, 0, 255], dtype=torch.uint8)
    mean, std = channel_stats(images.view(1, 3, 2, 2))
    assert mean == pytest.approx((0.5, 0.2, 0.25))
    assert std == pytest.approx((0.5, 1 / 255, 3**0.5 / 4))  # the constant channel: one grey level


def test_channel_stats_equal_those_of_floats():
    images = torch.randint(0, 256, (50, 3, 9, 11), dtype=torch.uint8)
    scaled = images.double() / 255
    mean, std = channel_stats(images)
    assert mean == pytest.approx(scaled.mean((0, 2, 3)).tolist(), rel=1e-12)
    assert std == pytest.approx(scaled.std((0, 2, 3), correction=0).tolist(), rel=1e-12)


def test_shrinking_counts_every_pixel():
    stripes = torch.zeros(1, 1, 64, 64, dtype=torch.uint8)
    stripes[..., ::4] = 200  # a plain bilinear read at every eighth pixel would see 0 or 100
    small = resize(stripes, 8)
    assert small.shape == (1, 1, 8, 8)
    assert small.float().mean().item() == pytest.approx(50, abs=2)
    assert small.float().std().item() < 10


@pytest.mark.parametrize("side", [8, 17, 96, 224])
def test_a_constant_image_stays_constant(side):
    images = torch.full((1500, 1, 12, 20), 255, dtype=torch.uint8)  # more than one chunk
    assert torch.equal(
        resize(images, side), torch.full((1500, 1, side, side), 255, dtype=torch.uint8)
    )
