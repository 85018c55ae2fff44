"""Parts of a network as sets of tensor names.

Parts are found by the type or the declared place of their modules, not by their names. A layer is
what one module holds: its weight, its bias and, for a batch norm, its buffers. A layer's name is
that of its tensors without the last component: "pair1.norm" for "pair1.norm.running_mean".
"""

from collections.abc import Iterable

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedapp.learn.networks.base import Network


def batch_norm_names(model: nn.Module) -> frozenset[str]:
    """Return the names of all tensors of all batch norms at any depth."""
    return names_of(model, {id(m) for m in model.modules() if isinstance(m, _BatchNorm)})


def head_names(model: nn.Module) -> frozenset[str]:
    """Return the names of the tensors of the head that the network declares."""
    assert isinstance(model, Network)
    return names_of(model, {id(model.head)})


def names_of(model: nn.Module, modules: set[int]) -> frozenset[str]:
    """Return the names of the tensors of these modules (by `id`) and of all modules inside them."""
    return frozenset(
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules(
            remove_duplicate=False
        )  # all names of a shared module
        if id(module) in modules
        for name in module.state_dict()
    )


def layers_of(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the tensor names of each layer, by the layer's name; both in alphabetical order."""
    layers: dict[str, tuple[str, ...]] = {}
    for name in sorted(names):
        layer = name.rpartition(".")[0]
        layers[layer] = (*layers.get(layer, ()), name)
    return dict(sorted(layers.items()))
