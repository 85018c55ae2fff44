"""The layers of a network as named tensors.

A layer is what one module holds: weight, bias, and the buffers of a batch norm with it. Its name is
that of its tensors without their last part, as in "pair1.norm" of "pair1.norm.running_mean".
"""

from collections.abc import Iterable


def layers_of(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the tensors of each layer, by its name; both in alphabetical order."""
    layers: dict[str, tuple[str, ...]] = {}
    for name in sorted(names):
        layer = name.rpartition(".")[0]
        layers[layer] = (*layers.get(layer, ()), name)
    return dict(sorted(layers.items()))
