import pytest
import torch

from fedapp.data.inputs import channel_stats, resize


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
