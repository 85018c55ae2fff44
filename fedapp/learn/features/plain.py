"""The numbers of an input themselves: for rows of tables and for signals."""

import math
from typing import ClassVar, Final, Self

from torch import Tensor

from fedapp.learn.features.base import BELOW_ONE, MAX_FEATURES, FeatureMap, random_projection
from fedapp.learn.networks.base import Network

MAX_ROOT_MEAN_SQUARE: Final = 3.0
"""Root mean square of an input's standardised numbers above which the input is scaled down."""


class Plain(FeatureMap):
    """The numbers of an input divided by one constant; longer inputs are scaled down to norm 1."""

    name: ClassVar[str] = "plain"
    default_temperature: ClassVar[float] = 1.0
    least_own_weight: ClassVar[float] = 1.0
    """Numbers of a table differ by site in more than the classes' shares: other devices, other
    patients. docs/HOSPITALS.md has what counting the own ones twice is worth."""

    def __init__(self, inputs: tuple[int, ...], seed: int) -> None:
        super().__init__()
        count = math.prod(inputs)
        self.size = min(count, MAX_FEATURES)
        self.longest = MAX_ROOT_MEAN_SQUARE * math.sqrt(self.size)
        self.projection: Tensor | None
        projection = random_projection(seed, count, count)
        self.register_buffer("projection", projection, persistent=False)

    @classmethod
    def build(cls, inputs: tuple[int, ...], seed: int, network: Network | None) -> Self:
        """Build the map for inputs of any shape."""
        return cls(inputs, seed)

    def forward(self, x: Tensor) -> Tensor:
        """float32 [n, *inputs] -> float32 [n, size], of norm 1 at most."""
        x = x.flatten(1)
        if self.projection is not None:
            x = x @ self.projection
        length = x.square().sum(1, keepdim=True).sqrt()
        return x / length.clamp_min(self.longest) * BELOW_ONE


FEATURES = Plain
