import pytest
import torch

<<<<<<< HEAD
from fedapp.data.images import channel_stats, resize
=======
from fedapp.data.images import ImageSet, channel_stats, resize
from fedapp.ground.errors import DataError


def fields(**changes: Any) -> dict[str, Any]:
    good = {
        "images": torch.zeros(3, 1, 8, 8, dtype=torch.uint8),
        "labels": torch.tensor([0, 1, 0]),
        "classes": ("a", "b"),
        "mean": (0.5,),
        "std": (0.5,),
    }
    return good | changes


def test_the_smallest_set_is_one_image_of_one_class() -> None:
    ImageSet(
        torch.zeros(1, 3, 8, 224, dtype=torch.uint8), torch.tensor([0]), ("a",), (0,) * 3, (1,) * 3
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"images": torch.zeros(3, 1, 8, 8)}, "uint8"),
        ({"images": torch.zeros(3, 8, 8, dtype=torch.uint8)}, "uint8"),
        ({"images": torch.zeros(0, 1, 8, 8, dtype=torch.uint8)}, "no images"),
        ({"images": torch.zeros(3, 2, 8, 8, dtype=torch.uint8)}, "2 channels"),
        ({"images": torch.zeros(3, 1, 7, 8, dtype=torch.uint8)}, r"7 x 8 pixels.*data\.image_size"),
        ({"images": torch.zeros(3, 1, 8, 225, dtype=torch.uint8)}, "8 x 225 pixels"),
        ({"labels": torch.tensor([0, 1])}, r"int64 \[3\]"),
        ({"labels": torch.tensor([0.0, 1.0, 0.0])}, "float32"),
        ({"labels": torch.tensor([0, 2, 0])}, r"\[0, 2\], must lie in \[0, 1\]"),
        ({"labels": torch.tensor([0, -1, 0])}, r"\[-1, 0\]"),
        ({"mean": (0.5, 0.5)}, "one per channel"),
        ({"std": (0.0,)}, "std above 0"),
        ({"mean": (float("nan"),)}, "finite"),
    ],
)
def test_a_set_that_breaks_a_rule_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says) as caught:
        ImageSet(**fields(**changes))
    assert "\n" not in str(caught.value)
>>>>>>> nets


def test_channel_stats_by_hand() -> None:
    images = torch.tensor([0, 255, 0, 255] + [51] * 4 + [0, 0, 0, 255], dtype=torch.uint8)
    mean, std = channel_stats(images.view(1, 3, 2, 2))
    assert mean == pytest.approx((0.5, 0.2, 0.25))
    assert std == pytest.approx((0.5, 1 / 255, 3**0.5 / 4))  # the constant channel: one grey level


def test_channel_stats_equal_those_of_floats() -> None:
    images = torch.randint(0, 256, (50, 3, 9, 11), dtype=torch.uint8)
    scaled = images.double() / 255
    mean, std = channel_stats(images)
    assert mean == pytest.approx(scaled.mean((0, 2, 3)).tolist(), rel=1e-12)
    assert std == pytest.approx(scaled.std((0, 2, 3), correction=0).tolist(), rel=1e-12)


def test_resize_to_the_same_size_is_the_same_tensor() -> None:
    images = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    assert resize(images, 8) is images


def test_shrinking_counts_every_pixel() -> None:
    stripes = torch.zeros(1, 1, 64, 64, dtype=torch.uint8)
    stripes[..., ::4] = 200  # a plain bilinear read at every eighth pixel would see 0 or 100
    small = resize(stripes, 8)
    assert small.shape == (1, 1, 8, 8)
    assert small.float().mean().item() == pytest.approx(50, abs=2)
    assert small.float().std().item() < 10


@pytest.mark.parametrize("side", [8, 17, 96, 224])
def test_a_constant_image_stays_constant(side: int) -> None:
    images = torch.full((1500, 1, 12, 20), 255, dtype=torch.uint8)  # more than one chunk
    assert torch.equal(
        resize(images, side), torch.full((1500, 1, side, side), 255, dtype=torch.uint8)
    )
