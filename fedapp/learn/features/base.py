"""What every map of features keeps to: fixed numbers of an input, for methods in closed form."""

from abc import ABC, abstractmethod
from typing import ClassVar, Self

from torch import Tensor, nn

from fedapp.learn.networks.base import Network

BELOW_ONE = 1 - 1e-5
"""The norm that rows are given in place of 1: rounding does not take it above 1."""
TINY = 1e-12
"""Norms are at least this where something is divided by them, so that 0 / 0 is 0."""


class FeatureMap(nn.Module, ABC):
    """Fixed numbers of an input: no gradient, no dropout, no draws.

    A subclass of the package is `fedapp/learn/features/<name>.py`, which offers it as `FEATURES`.
    Its state dict holds what it cannot make anew from its arguments. All are plain tensor
    operations, so that `torch.export` and ONNX take them with any number of inputs.
    """

    name: ClassVar[str]
    size: int
    """d, numbers of one input."""

    @classmethod
    @abstractmethod
    def build(cls, inputs: tuple[int, ...], seed: int, network: Network | None) -> Self:
        """Build the map of inputs without a `misfit`; equal arguments give equal maps.

        seed: of draws, where the map needs some. network: with its weights; of frozen networks.
        """

    @classmethod
    @abstractmethod
    def misfit(cls, inputs: tuple[int, ...]) -> str:
        """Return why it cannot take inputs of this shape, and the remedy; empty: it can."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Return the features: float32 [n, *inputs] -> float32 [n, size], n >= 0.

        x: as a network gets it (`fedapp.data.inputs.normalise`), finite. No row is longer than 1
        (L2), none holds NaN. A row does not depend on the other rows.
        """


def shortened(x: Tensor, least: float = TINY) -> Tensor:
    """Return the rows of x, [n, d], with the norm 1; of zeros, zeros.

    least: what is shorter is divided by this instead, and stays shorter than 1.
    """
    return x / x.square().sum(1, keepdim=True).sqrt().clamp_min(least)
