"""A pooled data set as one uint8 tensor, and the arithmetic on it that needs no file."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedapp.ground.errors import DataError

MIN_SIDE, MAX_SIDE = 8, 224
"""Smallest and largest height and width in pixels that any network takes; some take less."""

_CHUNK = 1024
"""Images resized at a time: the float copy stays a few megabytes."""


@dataclass(frozen=True, eq=False)
class ImageSet:
    """A data set, its own train and test parts together; checked on construction (`DataError`).

    images: uint8 [N, C, H, W], N >= 1, C in {1, 3}, H and W in [8, 224].
    labels: int64 [N], in [0, len(classes)).
    classes: their names, at least one.
    mean, std: one value per channel, of pixels / 255; finite, std above 0.
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise DataError(
                f"images are {images.dtype} {list(images.shape)}, must be uint8 [N, C, H, W]: "
                "convert them"
            )
        count, channels, height, width = images.shape
        if count == 0:
            raise DataError("data set has no images: check data.root and data.subset")
        if channels not in (1, 3):
            raise DataError(f"images have {channels} channels, must have 1 or 3: convert them")
        if not (MIN_SIDE <= height <= MAX_SIDE and MIN_SIDE <= width <= MAX_SIDE):
            raise DataError(
                f"images are {height} x {width} pixels, each side must be in "
                f"[{MIN_SIDE}, {MAX_SIDE}]: set data.image_size"
            )
        if labels.dtype != torch.int64 or labels.shape != (count,):
            raise DataError(
                f"labels are {labels.dtype} {list(labels.shape)}, must be int64 [{count}], "
                "one per image: check the data files"
            )
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= len(self.classes):
            raise DataError(
                f"labels lie in [{low}, {high}], must lie in [0, {len(self.classes) - 1}], "
                f"one of {len(self.classes)} classes: check the data files"
            )
        if not len(self.mean) == len(self.std) == channels:
            raise DataError(
                f"mean and std have {len(self.mean)} and {len(self.std)} values, must have "
                f"{channels}, one per channel: give one each"
            )
        if not all(map(math.isfinite, self.mean + self.std)) or min(self.std) <= 0:
            raise DataError(
                f"mean {self.mean} and std {self.std} must be finite and std above 0: "
                "compute them again"
            )


def channel_stats(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation per channel of pixels / 255.

    images: uint8 [N, C, H, W], N >= 1. Counted exactly from histograms, without a float copy and
    the same on every machine. A constant channel gets the std of one grey level, 1 / 255, so that
    dividing by it stays finite.
    """
    means, stds = [], []
    for channel in images.unbind(1):
        histogram = torch.bincount(channel.flatten(), minlength=256).tolist()
        total = sum(histogram)
        first = sum(level * n for level, n in enumerate(histogram))
        second = sum(level * level * n for level, n in enumerate(histogram))
        means.append(first / total / 255)
        # Integers up to here: no cancellation in the difference of the two moments.
        variance = (second * total - first * first) / (total * total)
        stds.append(max(math.sqrt(variance), 1.0) / 255)
    return tuple(means), tuple(stds)


def resize(images: Tensor, side: int) -> Tensor:
    """Return the images at `side` x `side` pixels, uint8.

    images: uint8 [N, C, H, W]. Bilinear where an image grows; where it shrinks every source pixel
    counts (area-weighted), so that fine structure is averaged and not skipped.
    """
    if images.shape[2:] == (side, side):
        return images
    resized = torch.empty((*images.shape[:2], side, side), dtype=torch.uint8)
    for start in range(0, len(images), _CHUNK):
        part = images[start : start + _CHUNK].to(torch.float32)
        scaled = functional.interpolate(part, (side, side), mode="bilinear", antialias=True)
        resized[start : start + _CHUNK] = scaled.round_().clamp_(0, 255)
    return resized
