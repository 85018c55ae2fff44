"""Multi-layer perceptron: linear layers, each with ReLU and dropout, and a linear head.

Two hidden layers of 200 are the "2NN" of McMahan et al. 2017, which has no dropout.
"""

import math
from itertools import pairwise
from typing import Annotated, ClassVar

import torch.nn.functional as F
from pydantic import BeforeValidator
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedapp.core.errors import Contradiction
from fedapp.core.settings import CLOSED, Rate
from fedapp.learn.networks.base import Draw, Features, Network, NetworkSettings, drop

MAX_UNITS = 65_536
"""Units of a hidden layer, at most."""


class MLP(Network):
    """Inputs float [n, ...] of `dimensions` numbers -> logits float32 [n, num_classes].

    The features are the first hidden layer's output [n, hidden[0]].
    """

    def __init__(
        self, dimensions: int, num_classes: int, hidden: tuple[int, ...], dropout: float
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise((dimensions, *hidden)))
        self.end_in(hidden[-1], num_classes, dropout)

    def trunk(self, x: Tensor) -> Features:
        """Run the first hidden layer."""
        with self.in_compute_type(x.device):
            return (F.relu(self.layers[0](x.flatten(1))),)

    def embed(self, features: Features, dropout: Draw | None = None) -> Tensor:
        """Run the other hidden layers, each between two dropouts: [n, hidden[-1]]."""
        [h] = features
        with self.in_compute_type(h.device):
            h = drop(self.dropout, h, dropout)
            for layer in self.layers[1:]:
                h = drop(self.dropout, F.relu(layer(h)), dropout)
        return h


def _as_text(value: object) -> object:
    """Accept the units of a single layer as a number, as YAML and command lines give them."""
    return str(value) if type(value) is int else value


@dataclass(frozen=True, config=CLOSED)
class MLPSettings(NetworkSettings):
    """For vectors; an image is taken as the vector of its pixels."""

    name: ClassVar[str] = "mlp"

    hidden: Annotated[str, BeforeValidator(_as_text)] = "200, 200"
    """Units of the hidden layers, one or more, commas between them."""
    dropout: Rate = 0.5
    """p, dropout rate after every hidden layer."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The units of the hidden layers as numbers."""
        return tuple(int(text) for text in self.hidden.split(","))

    def __post_init__(self) -> None:
        parts = [text.strip() for text in self.hidden.split(",")]
        if not all(text.isdecimal() and 1 <= int(text) <= MAX_UNITS for text in parts):
            rule = f"hidden must be numbers in [1, {MAX_UNITS}] with commas between, as '200, 200'"
            raise Contradiction(rule, "hidden")

    def network(self, inputs: tuple[int, ...], num_classes: int) -> MLP:
        """Build the network for inputs of any shape."""
        return MLP(math.prod(inputs), num_classes, self.sizes, self.dropout)


NETWORK = MLPSettings
