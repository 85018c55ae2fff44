"""How far members moved from the server's last model, and what every rule takes of that."""

import math
from collections.abc import Iterable, Sequence
from statistics import median_low

import torch

from fedapp.learn.params import Params

MAX_WEIGHTS_CHANGE, MAX_STATISTICS_CHANGE = 30.0, 300.0
"""A change of weights, and of statistics, is left out above so many times the usual length, by
every rule. Honest ones were at most 5 and 41 times as long (docs/SECURITY.md)."""


def middle(lengths: Iterable[float]) -> float:
    """Return the median of the lengths above 0, of two middle ones the lower; 0 without any.

    Who learned nothing has not moved, and says nothing of how far others do.
    """
    return median_low([length for length in lengths if length > 0] or [0.0])


def times(lengths: Sequence[float], before: float) -> list[float]:
    """Return how many times as long as usual each change is.

    Above `MAX_WEIGHTS_CHANGE` it is too long. lengths: of a round's members, >= 0. before: the
    largest `middle` of earlier rounds, 0 without any. Usual is this round's `middle`, but no more
    than `before`: in a round in which most members are bad, their median is no measure. All are 0
    where nobody moved.
    """
    usual = min(middle(lengths), before or math.inf)
    return [length / usual if usual else 0.0 for length in lengths]


def length(params: Params, own: Params, names: Iterable[str]) -> float:
    """Return the L2 norm of params - own over these tensors together."""
    return math.sqrt(
        sum(float((params[n].double() - own[n].double()).square().sum()) for n in names)
    )


def rough_length(params: Params, own: Params, names: Sequence[str]) -> float:
    """Return `length` to about six digits, in a fraction of its time: for what is not written down.

    Where single precision cannot hold the squares, it is `length`.
    """
    if not names:
        return 0.0
    moved = torch._foreach_sub([params[n] for n in names], [own[n] for n in names])
    norms = torch.stack([norm.float() for norm in torch._foreach_norm(moved)])
    far = float(torch.linalg.vector_norm(norms))
    return far if math.isfinite(far) else length(params, own, names)
