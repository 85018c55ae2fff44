from typing import Any

import numpy as np
import pytest
import torch

from fedapp.data.inputs import DataSet, normalise
from fedapp.ground.errors import DataError


def fields(**changes: Any) -> dict[str, Any]:
    good = {
        "inputs": torch.zeros(3, 1, 8, 8, dtype=torch.uint8),
        "labels": torch.tensor([0, 1, 0]),
        "classes": ("a", "b"),
        "mean": (0.5,),
        "std": (0.5,),
    }
    return good | changes


def test_the_smallest_set_is_one_image_of_one_class() -> None:
    DataSet(
        torch.zeros(1, 3, 8, 512, dtype=torch.uint8), torch.tensor([0]), ("a",), (0,) * 3, (1,) * 3
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
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
    ],
)
def test_a_set_that_breaks_a_rule_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says) as caught:
        DataSet(**fields(**changes))
    assert "\n" not in str(caught.value)


def test_normalise_by_hand() -> None:
    images = torch.tensor([0, 255, 51], dtype=torch.uint8).view(1, 3, 1, 1).expand(2, 3, 8, 8)
    mean, std = (0.5, 0.5, 0.2), (0.5, 0.25, 0.1)
    out = normalise(images, mean, std)
    assert out.dtype == torch.float32 and out.shape == (2, 3, 8, 8)
    assert out[1, :, 3, 3].tolist() == pytest.approx([-1.0, 2.0, 0.0], abs=1e-6)
    assert normalise(images[:0], mean, std).shape == (0, 3, 8, 8)


def test_normalise_every_grey_level() -> None:
    levels = torch.arange(256, dtype=torch.uint8).view(256, 1, 1, 1)
    expected = (np.arange(256) / 255 - 0.2860) / 0.3530
    out = normalise(levels, (0.2860,), (0.3530,)).flatten().numpy()
    assert np.allclose(out, expected, rtol=0, atol=1e-6)
    assert levels.flatten().tolist() == list(range(256))  # the images are left as they are
