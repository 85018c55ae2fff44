"""What every map of features keeps to: fixed numbers of an input, for methods in closed form."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedapp.core.rng import torch_stream
from fedapp.learn.features._images import image_misfit
from fedapp.learn.networks.base import Network
from fedapp.learn.params import Schema

MAX_FEATURES = 2000
"""Of an input; where there are more, a random projection leaves so many."""
BELOW_ONE = 1 - 1e-5
"""The norm that rows are given in place of 1: rounding does not take it above 1."""
MIN_NORM = 1e-12
"""Norms are at least this where something is divided by them, so that 0 / 0 is 0."""


class FeatureMap(nn.Module, ABC):
    """Fixed numbers of an input: no gradient, no dropout, no draws.

    A subclass of the package is `fedapp/learn/features/<name>.py`, which offers it as `FEATURES`.
    Its state dict holds what it cannot make anew from its arguments. All are plain tensor
    operations, so that `torch.export` and ONNX take them with any number of inputs.
    """

    name: ClassVar[str]
    of_images: ClassVar[bool] = False
    """Whether it takes images alone, of some size; others take inputs of any shape."""
    at_once: ClassVar[int] = 64
    """Inputs that are fastest at a time: what is computed of more leaves the cache."""
    size: int
    """d, numbers of one input."""

    @classmethod
    @abstractmethod
    def build(cls, inputs: tuple[int, ...], seed: int, network: Network | None) -> "FeatureMap":
        """Build the map of inputs without a `misfit`; equal arguments give equal maps.

        seed: of draws, where the map needs some. network: with its weights; of frozen networks.
        """

    @classmethod
    def misfit(cls, inputs: tuple[int, ...]) -> str:
        """Return why it cannot take inputs of this shape, and the remedy; empty: it can."""
        return image_misfit(cls.name, inputs) if cls.of_images else ""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Return the features: float32 [n, *inputs] -> float32 [n, size], n >= 0.

        x: as a network gets it (`fedapp.data.inputs.normalise`), finite. No row is longer than 1
        (L2), none holds NaN. A row does not depend on the other rows.
        """

    @torch.no_grad()
    def of(self, x: Tensor) -> Tensor:
        """Return the features of any number of inputs, `at_once` at a time."""
        out = x.new_empty(len(x), self.size)
        for start in range(0, len(x), self.at_once):
            some = slice(start, start + self.at_once)
            out[some] = self(x[some])
        return out


class LearnedFeatures(FeatureMap):
    """Features that are learned from everybody's inputs, labelled or not, by sums.

    In each of the `exchanges`, in order from step 0: every site makes `sums` under what was learned
    so far, the sums of all sites are added, and everybody learns from the total. What was learned
    is in the state dict, float32. Until then the features are those of the start.
    """

    @abstractmethod
    def exchanges(self) -> int:
        """Return the number of steps."""

    @abstractmethod
    def sums(self, step: int, x: Tensor) -> dict[str, Tensor]:
        """Return a site's sums of this step, as `sum_schema` says; of no inputs, zeros.

        x: as of `forward`. Whatever is drawn is the same at all sites. The sums of a union of sites
        are the sums of theirs, added by name, to the last bit.
        """

    @abstractmethod
    def learned(self, step: int, total: Mapping[str, Tensor]) -> None:
        """Learn from the added sums of all sites, finite; of zeros, nothing."""

    @abstractmethod
    def impossible(self, step: int, sums: Mapping[str, Tensor], images: int) -> str:
        """Return why no so many images have these sums of a step, finite; empty: some may."""

    @abstractmethod
    def sum_schema(self, step: int) -> Schema:
        """Return the shapes and dtypes of a step's sums."""


def random_projection(seed: int, numbers: int, divisor: int) -> Tensor | None:
    """Return a matrix [numbers, MOST_NUMBERS], or None where there are no more numbers than that.

    Its entries are normal, of variance 1 / divisor, and the same wherever seed and numbers are.
    """
    if numbers <= MAX_FEATURES:
        return None
    stream = torch_stream(seed, "projection", numbers)
    return torch.randn(numbers, MAX_FEATURES, generator=stream) / math.sqrt(divisor)


def unit_rows(x: Tensor, least: float = MIN_NORM) -> Tensor:
    """Return the rows of x, [n, d], with the norm 1; of zeros, zeros.

    least: what is shorter is divided by this instead, and stays shorter than 1.
    """
    return x / x.square().sum(1, keepdim=True).sqrt().clamp_min(least)
