"""Features from a network whose weights are frozen: what it hands to its head."""

from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from fedapp.core.errors import ConfigError
from fedapp.learn.features.base import (
    BELOW_ONE,
    MAX_FEATURES,
    FeatureMap,
    random_projection,
    unit_rows,
)
from fedapp.learn.networks.base import Network
from fedapp.learn.uncertainty import cache_sized_pieces


class FrozenNetwork(FeatureMap):
    """`embed(trunk(x))`, scaled to norm 1. It is always in evaluation mode."""

    name: ClassVar[str] = "network"
    rounded: ClassVar[bool] = True
    enough_labels: ClassVar[float] = 0.5
    """Less than elsewhere: a second moment of unlabelled inputs is 1.2 MB for a site, and with half
    of the labels was worth 0.4 points on the one seed that was tried."""

    def __init__(self, network: Network, seed: int) -> None:
        super().__init__()
        self.network = network
        self.size = min(network.features, MAX_FEATURES)
        self.projection: Tensor | None
        projection = random_projection(seed, network.features, MAX_FEATURES)
        self.register_buffer("projection", projection, persistent=False)
        self.eval()

    @classmethod
    def build(cls, inputs: tuple[int, ...], seed: int, network: Network | None) -> Self:
        """Build the map of a network. Raises ConfigError without a network."""
        if network is None:
            raise ConfigError(
                "`network` features need a network with weights; set model.weights, or use hog"
            )
        return cls(network, seed)

    def train(self, mode: bool = True) -> Self:
        """Stay in eval mode."""
        nn.Module.train(self, False)
        return self

    def forward(self, x: Tensor) -> Tensor:
        """float32 [n, *inputs] -> float32 [n, size], of norm 1; zeros stay zeros."""
        with self.network.in_compute_type(x.device):
            out = self.network.embed(self.network.trunk(x))
        out = unit_rows(out.float())
        if self.projection is not None:
            out = unit_rows(out @ self.projection)
        return out * BELOW_ONE

    @torch.no_grad()
    def of(self, x: Tensor) -> Tensor:
        """Return the features of a batch, in the pieces in which a network would process it.

        Matrix products have other last bits with other numbers of rows.
        """
        return torch.cat([self(piece) for piece in cache_sized_pieces(x)])


FEATURES = FrozenNetwork
