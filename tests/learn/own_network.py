"""The network that docs/extend/networks.md shows, and functions that break the contract."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedapp.learn.networks.base import Features, Network


class Small(Network):
    """One hidden layer, dropout, head."""

    def __init__(self, dimensions: int, num_classes: int, units: int, rate: float) -> None:
        super().__init__()
        self.hidden = nn.Linear(dimensions, units)
        self.end_in(units, num_classes, rate)

    def trunk(self, x: Tensor) -> Features:
        return (F.relu(self.hidden(x.flatten(1))),)


def small(inputs: tuple[int, ...], num_classes: int, units: int = 16, rate: float = 0.5) -> Network:
    return Small(math.prod(inputs), num_classes, units, rate)


def needs(inputs: tuple[int, ...], num_classes: int, units: int) -> Small:
    return small(inputs, num_classes, units)


# --- what is wrong with each of these is in its name ----------------------------------------------


def raises(inputs: tuple[int, ...], num_classes: int) -> Network:
    raise RuntimeError("out of\nluck")


def no_network(inputs: tuple[int, ...], num_classes: int) -> Network:
    return nn.Linear(1, 1)


class Trunkless(Network):
    def embed(self, features, dropout=None):
        return features[0]


def no_trunk(inputs: tuple[int, ...], num_classes: int) -> Network:
    return Trunkless()


def _changed(inputs: tuple[int, ...], num_classes: int, **members: object) -> Network:
    network = small(inputs, num_classes)
    for name, member in members.items():
        setattr(network, name, member)
    return network


def no_head(inputs: tuple[int, ...], num_classes: int) -> Network:
    return _changed(inputs, num_classes, head=nn.Identity())


def other_head(inputs: tuple[int, ...], num_classes: int) -> Network:
    return _changed(inputs, num_classes, head=nn.Linear(16, num_classes + 1))


def other_features(inputs: tuple[int, ...], num_classes: int) -> Network:
    return _changed(inputs, num_classes, features=5)


def no_dropout(inputs: tuple[int, ...], num_classes: int) -> Network:
    return _changed(inputs, num_classes, dropout=nn.Identity())


def doubles(inputs: tuple[int, ...], num_classes: int) -> Network:
    return small(inputs, num_classes).double()


def one_tensor(inputs: tuple[int, ...], num_classes: int) -> Network:
    return _changed(inputs, num_classes, trunk=lambda x: x)


def drops_in_trunk(inputs: tuple[int, ...], num_classes: int) -> Network:
    return _changed(inputs, num_classes, trunk=lambda x: (F.dropout(x),))


def wide_embed(inputs: tuple[int, ...], num_classes: int) -> Network:
    return _changed(inputs, num_classes, embed=lambda features: torch.zeros(2, 17))


def half_logits(inputs: tuple[int, ...], num_classes: int) -> Network:
    return _changed(inputs, num_classes, classify=lambda z: torch.zeros(2, num_classes).half())


def untyped(inputs, num_classes, rate=0.5) -> Network:
    return small(inputs, num_classes)


def packed(inputs: tuple[int, ...], num_classes: int, **settings: int) -> Network:
    return small(inputs, num_classes)


def named(inputs: tuple[int, ...], num_classes: int, name: str = "") -> Network:
    return small(inputs, num_classes)


def weighted(inputs: tuple[int, ...], num_classes: int, weights: float = 1.0) -> Network:
    return small(inputs, num_classes)


def odd_type(inputs: tuple[int, ...], num_classes: int, unit: Tensor = None) -> Network:
    return small(inputs, num_classes)


def listed(inputs: tuple[int, ...], num_classes: int, units: list[int] = []) -> Network:  # noqa: B006
    return small(inputs, num_classes)


def without_type(inputs: tuple[int, ...], num_classes: int):
    return small(inputs, num_classes)


def too_few(inputs: tuple[int, ...]) -> Network:
    return small(inputs, 2)
