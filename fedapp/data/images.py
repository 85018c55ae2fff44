"""Arithmetic on a data set's images that needs no file."""

import math

import torch
from torch import Tensor
from torch.nn import functional

MIN_SIDE, MAX_SIDE = 8, 512
"""Smallest and largest height and width in pixels that any network takes; some take less."""

_CHUNK = 1024
"""Images resized at a time: the float copy stays a few megabytes."""


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
