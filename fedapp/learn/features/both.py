"""Histograms of oriented gradients beside responses of learned filters, both with equal norm."""

import math
from typing import ClassVar

import torch
from torch import Tensor

from fedapp.learn.features.hog import Hog
from fedapp.learn.features.patches import FILTERS, ROUNDS, Patches


class Both(Patches):
    """Learns as `Patches` does. An image with three channels has at most 1,680 features."""

    name: ClassVar[str] = "both"

    def __init__(
        self, inputs: tuple[int, ...], seed: int, filters: int = FILTERS, rounds: int = ROUNDS
    ) -> None:
        super().__init__(inputs, seed, filters, rounds)
        self.hog = Hog(inputs)
        self.size += self.hog.size

    def forward(self, x: Tensor) -> Tensor:
        """float32 [n, channels, height, width] -> float32 [n, size], of norm 1 at most."""
        return torch.cat((self.hog(x), super().forward(x)), 1) * math.sqrt(0.5)


FEATURES = Both
