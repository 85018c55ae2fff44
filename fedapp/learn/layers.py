"""The layers of a network as named tensors, and how far two networks differ in each.

A layer is what one module holds: weight, bias, and the buffers of a batch norm with it. Its name is
that of its tensors without their last part, as in "pair1.norm" of "pair1.norm.running_mean".
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor

_LEAST = 1e-12
"""Norm below which a layer counts as 0: what differs from nothing differs by very much."""


def layers_of(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the tensors of each layer, by its name; both in alphabetical order."""
    layers: dict[str, tuple[str, ...]] = {}
    for name in sorted(names):
        layer = name.rpartition(".")[0]
        layers[layer] = (*layers.get(layer, ()), name)
    return dict(sorted(layers.items()))


def divergences(
    target: Mapping[str, Tensor], online: Mapping[str, Tensor], trained: Collection[str]
) -> dict[str, Tensor]:
    """Return FSM_j = ||target_j - online_j|| / ||online_j|| of each layer j, a float32 scalar >= 0.

    FedSiam's Eq. 10, its "fair-and-square metric"; Euclidean norms over a layer's tensors together.
    target, online: all tensors of two networks. trained: the names of the parameters, which alone
    count. Equal layers differ by 0, also where both are 0.
    """
    found = {}
    for layer, names in layers_of(online).items():
        weights = [name for name in names if name in trained]
        apart = _norm([target[name].double() - online[name].double() for name in weights])
        length = _norm([online[name].double() for name in weights])
        found[layer] = (apart / length.clamp_min(_LEAST)).float()
    return found


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    squares = [tensor.square().sum() for tensor in tensors]
    return torch.stack([*squares, torch.zeros((), dtype=torch.float64)]).sum().sqrt()
