"""Distance-reweighted averaging (RSCFed, Liang et al. 2022).

A model that is far from the others' mean counts for less, the more so the fewer images it comes of.
"""

from collections.abc import Iterable, Sequence

import torch

from fedapp.learn.params import Params


def distance_to(mean: Params, model: Params) -> float:
    """Return the sum over all floating tensors, batch-norm statistics included, of ||w - wbar||."""
    lengths = [
        torch.linalg.vector_norm((model[name] - tensor).double())
        for name, tensor in mean.items()
        if tensor.is_floating_point()
    ]
    return torch.stack(lengths).sum().item()


def reweighted(counts: Sequence[float], distances: Iterable[float], scale: float) -> list[float]:
    """Return n_k exp(-s d_k / n_k), scaled to sum 1: each model's weight in a sub-consensus.

    counts: n_k, images, 0 or more; one at least above 0. distances: d_k >= 0. scale: s >= 0, in
    images per distance; 0: by counts alone. Where s d / n is in the thousands the weights are still
    in proportion: the largest exponent is taken off first.
    """
    n = torch.tensor(counts, dtype=torch.float64)
    d = torch.tensor(list(distances), dtype=torch.float64)
    exponents = n.log() - scale * d / n.clamp_min(torch.finfo(n.dtype).tiny)
    found: list[float] = torch.softmax(exponents.masked_fill(n == 0, -torch.inf), 0).tolist()
    return found
