"""The contract of every feature map: fixed numbers of an input, for methods in closed form."""

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
"""Features of an input; a random projection reduces a larger number to this."""
BELOW_ONE = 1 - 1e-5
"""The norm to which rows are scaled in place of 1, so that rounding cannot take it above 1."""
MIN_NORM = 1e-12
"""Least norm by which anything is divided, so that 0 / 0 is 0."""


class FeatureMap(nn.Module, ABC):
    """Maps an input to fixed numbers: without gradients, dropout or randomness.

    A subclass in this package is `fedapp/learn/features/<name>.py`, which offers it as `FEATURES`.
    Its state dict holds what cannot be rebuilt from its arguments. It uses plain tensor operations
    only, so that `torch.export` and ONNX accept it with any number of inputs.
    """

    name: ClassVar[str]
    of_images: ClassVar[bool] = False
    """Whether it takes images only, within a range of sizes; others take inputs of any shape."""
    at_once: ClassVar[int] = 64
    """The fastest number of inputs in one call: more do not fit the CPU's cache."""
    default_temperature: ClassVar[float] = 2.0
    """Temperature of a linear discriminant over these features where too few labels can vote on it.
    Above 1: over features of images the discriminant is too sure of its answers."""
    least_own_weight: ClassVar[float] = 0.0
    """How many times more a site's own labelled inputs count at least, where they may count
    more."""
    rounded: ClassVar[bool] = False
    """Whether a closed form's sums, covariances and grids of heads over these features travel
    rounded, because there are many of them."""
    enough_labels: ClassVar[float] = 1.0
    """Labelled inputs for each feature from which on a closed form needs their covariance alone,
    and none of unlabelled ones."""
    size: int
    """d, the number of features of one input."""

    @classmethod
    @abstractmethod
    def build(cls, inputs: tuple[int, ...], seed: int, network: Network | None) -> "FeatureMap":
        """Build the map for inputs that have no `misfit`. Equal arguments give equal maps.

        seed: of random draws, if the map has any.
        network: a network with its weights, for the features of a frozen network.
        """

    @classmethod
    def misfit(cls, inputs: tuple[int, ...]) -> str:
        """Return why the map cannot take inputs of this shape, and the remedy; empty if it can."""
        return image_misfit(cls.name, inputs) if cls.of_images else ""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Return the features: float32 [n, *inputs] -> float32 [n, size], n >= 0.

        x: finite, and normalised as for a network (`fedapp.data.inputs.normalise`). The L2 norm of
            a row is at most 1, and no entry is NaN. A row does not depend on the other rows.
        """

    @torch.no_grad()
    def of(self, x: Tensor) -> Tensor:
        """Return the features of any number of inputs, computing `at_once` at a time."""
        out = x.new_empty(len(x), self.size)
        for start in range(0, len(x), self.at_once):
            some = slice(start, start + self.at_once)
            out[some] = self(x[some])
        return out


class LearnedFeatures(FeatureMap):
    """A feature map that is learned from the inputs of all sites, labelled or not, through sums.

    Learning takes `exchanges` steps, in order from step 0. In each, every site computes `sums` with
    what was learned so far, the sums of all sites are added, and everybody learns from the total.
    What was learned is in the state dict, in float32. Before any step, the features are those of
    the initial state.
    """

    @abstractmethod
    def exchanges(self) -> int:
        """Return the number of steps."""

    @abstractmethod
    def sums(self, step: int, x: Tensor) -> dict[str, Tensor]:
        """Return a site's sums of this step, as `sum_schema` describes; zeros without inputs.

        x: as for `forward`. Random draws are the same at all sites. The sums of the union of
            several sites equal the added sums of these sites, by name, to the last bit.
        """

    @abstractmethod
    def learned(self, step: int, total: Mapping[str, Tensor]) -> None:
        """Learn from the added, finite sums of all sites; sums of zeros change nothing."""

    @abstractmethod
    def impossible(self, step: int, sums: Mapping[str, Tensor], images: int) -> str:
        """Return why no `images` images can have these finite sums of a step; empty if some can."""

    @abstractmethod
    def sum_schema(self, step: int) -> Schema:
        """Return the shapes and dtypes of the sums of a step."""


def random_projection(seed: int, numbers: int, divisor: int) -> Tensor | None:
    """Return a projection [numbers, MAX_FEATURES]; None where there are no more numbers than that.

    Its entries are normal with variance 1 / divisor, and equal wherever seed and numbers are.
    """
    if numbers <= MAX_FEATURES:
        return None
    stream = torch_stream(seed, "projection", numbers)
    return torch.randn(numbers, MAX_FEATURES, generator=stream) / math.sqrt(divisor)


def unit_rows(x: Tensor, least: float = MIN_NORM) -> Tensor:
    """Return the rows of x, [n, d], scaled to norm 1; rows of zeros stay zeros.

    least: rows with a smaller norm are divided by this instead, so that their norm stays below 1.
    """
    return x / x.square().sum(1, keepdim=True).sqrt().clamp_min(least)
