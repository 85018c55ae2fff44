"""A network: one hidden layer, whose numbers lie between -1 and 1."""

import math

import torch
from torch import Tensor, nn

from fedapp.learn.networks.base import Draw, Features, Network, drop


class Bounded(Network):
    def __init__(self, dimensions: int, num_classes: int, units: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(dimensions, units)
        self.dropout = nn.Dropout(0.1)
        self.features = units
        self.head = nn.Linear(units, num_classes)

    def trunk(self, x: Tensor) -> Features:
        return (torch.tanh(self.hidden(x.flatten(1))),)

    def embed(self, features: Features, dropout: Draw | None = None) -> Tensor:
        return drop(self.dropout, features[0], dropout)


def bounded(inputs: tuple[int, ...], num_classes: int, units: int = 16) -> Network:
    return Bounded(math.prod(inputs), num_classes, units)
