"""A pooled data set: inputs of any shape, their labels, and arithmetic on them without files."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedapp.core.errors import DataError
from fedapp.core.names import check_class_names

MIN_SIDE, MAX_SIDE = 8, 512
"""Least and greatest height and width, in pixels, over all networks; some networks accept less."""

_CHUNK = 1024
"""Images resized at a time, so that the float copy stays at a few megabytes."""

UNKNOWN = -1
"""Label of an input whose class nobody knows; such inputs are used for training only."""


@dataclass(frozen=True, eq=False)
class NaturalSites:
    """Where a data set's inputs come from, where it is known: of hospitals, from which.

    names: of the places. owner: int64 [N], the place of each input in `names`. test: bool [N],
    inputs that whoever published the data set keeps for testing; None: no such part is agreed upon.
    """

    names: tuple[str, ...]
    owner: NDArray[np.int64]
    test: NDArray[np.bool_] | None = None


@dataclass(frozen=True, eq=False)
class DataSet:
    """A data set with its own train and test parts pooled; validated on construction (`DataError`).

    inputs: images, uint8 [N, C, H, W], C in {1, 3}, H and W in [8, 512]; or numbers, float32 [N, D]
        (rows of a table), [N, C, L] (signals) or [N, C, H, W], all finite; N >= 1.
    labels: int64 [N], in [0, len(classes)), or `UNKNOWN`, but not all of them.
    classes: the names of the classes, at least one.
    mean, std: one value for each channel, the second dimension of the inputs (for a table: for each
        column), of pixels / 255 or of the numbers unchanged; finite, std above 0. See `normalise`.
    patients: the number of each input's patient, int64 [N], from 0; None: unknown.
    sites: where the inputs come from, for `split.deal=natural`; None: unknown.
    """

    inputs: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    patients: Tensor | None = None
    sites: NaturalSites | None = None

    def __post_init__(self) -> None:
        check_inputs(self.inputs)
        check_class_names(self.classes)
        labels, (count, channels) = self.labels, self.inputs.shape[:2]
        if labels.dtype != torch.int64 or labels.shape != (count,):
            raise DataError(
                f"labels are {labels.dtype} {list(labels.shape)}, must be int64 [{count}], "
                "one per input: check the data files"
            )
        low, high = int(labels.min()), int(labels.max())
        if low < UNKNOWN or high >= len(self.classes):
            raise DataError(
                f"labels lie in [{low}, {high}], must lie in [0, {len(self.classes) - 1}], one of "
                f"{len(self.classes)} classes, or be {UNKNOWN}, unknown: check the data files"
            )
        if high == UNKNOWN:
            raise DataError("no input has a known class: give some their labels")
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

    @property
    def are_images(self) -> bool:
        """Whether the inputs are images, which can be augmented."""
        return self.inputs.dtype == torch.uint8

    def chosen(self, kept: NDArray[np.int64]) -> "DataSet":
        """Return the inputs at these positions, in their order, with all that is known of them."""
        at, patients, sites = torch.from_numpy(kept), None, None
        if self.patients is not None:
            patients = self.patients[at].unique(return_inverse=True)[1]
        if self.sites is not None:
            test = None if self.sites.test is None else self.sites.test[kept]
            sites = NaturalSites(self.sites.names, self.sites.owner[kept], test)
        rows = self.inputs[at], self.labels[at]
        return DataSet(*rows, self.classes, self.mean, self.std, patients, sites)


def normalise(inputs: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Return (x - mean) / std, float32, with the shape and on the device of the inputs.

    inputs: [n, C, ...]; x is pixels / 255 for uint8 inputs, otherwise the numbers unchanged.
    mean, std: one value for each channel, std above 0.
    """
    dims, device = inputs.ndim, inputs.device
    if inputs.dtype != torch.uint8:
        centred = inputs - _per_channel(mean, dims, device)
        return centred.div_(_per_channel(std, dims, device))
    # One multiplication and one addition in place: no third float copy of the batch.
    scale, shift = _pixels(mean, std, dims, device)
    return inputs.to(torch.float32).mul_(scale).add_(shift)


@lru_cache(maxsize=16)
def _pixels(
    mean: tuple[float, ...], std: tuple[float, ...], dims: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return a and b in a * pixel + b, each as from `_per_channel`."""
    scale = _per_channel(tuple(1 / (255 * s) for s in std), dims, device)
    return scale, _per_channel(tuple(-m / s for m, s in zip(mean, std, strict=True)), dims, device)


@lru_cache(maxsize=16)
def _per_channel(values: tuple[float, ...], dims: int, device: torch.device) -> Tensor:
    """Return the values as [C, 1, ...] with dims - 1 dimensions, cached on the device."""
    return torch.tensor(values, device=device).view(-1, *[1] * (dims - 2))


def channel_stats(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel of pixels / 255.

    images: uint8 [N, C, H, W], N >= 1. They are computed exactly from histograms, without a float
        copy, and are equal on every machine. A constant channel gets the standard deviation of one
        grey level, 1 / 255, so that dividing by it stays finite.
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
    """Return the images with `side` x `side` pixels, uint8.

    images: uint8 [N, C, H, W]. Growing images are interpolated bilinearly. When an image shrinks,
        every source pixel contributes (area-weighted), so that fine structure is averaged rather
        than skipped.
    """
    if images.shape[2:] == (side, side):
        return images
    resized = torch.empty((*images.shape[:2], side, side), dtype=torch.uint8)
    for start in range(0, len(images), _CHUNK):
        part = images[start : start + _CHUNK].to(torch.float32)
        scaled = functional.interpolate(part, (side, side), mode="bilinear", antialias=True)
        resized[start : start + _CHUNK] = scaled.round_().clamp_(0, 255)
    return resized


def number_stats(inputs: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel of inputs that are not images.

    inputs: float32 [N, C, ...], N >= 1, finite. Sums are exact (`math.fsum`), so the results are
        equal on every machine. A constant channel gets the standard deviation 1, so that dividing
        by it stays finite.
    """
    means, stds = [], []
    for channel in inputs.double().unbind(1):
        count = channel.numel()
        mean = math.fsum(channel.flatten().tolist()) / count
        variance = math.fsum((channel - mean).square().flatten().tolist()) / count
        means.append(mean)
        stds.append(math.sqrt(variance) or 1.0)
    return tuple(means), tuple(stds)


def check_inputs(inputs: Tensor) -> None:
    """Raise DataError where these cannot be `DataSet.inputs`."""
    (_check_images if inputs.dtype == torch.uint8 else _check_numbers)(inputs)


def _check_images(images: Tensor) -> None:
    if images.ndim != 4:
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


def _check_numbers(inputs: Tensor) -> None:
    if inputs.dtype != torch.float32 or inputs.ndim not in (2, 3, 4) or 0 in inputs.shape:
        raise DataError(
            f"inputs are {inputs.dtype} {list(inputs.shape)}, must be uint8 [N, C, H, W] (images) "
            "or float32 [N, D], [N, C, L] or [N, C, H, W], no dimension 0: convert them"
        )
    if not bool(inputs.isfinite().all()):
        raise DataError("inputs hold NaN or infinity: fill in or drop what is missing")
