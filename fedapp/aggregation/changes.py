"""How far members moved from the server's current model, and limits that hold for every rule."""

import math
from collections.abc import Iterable, Sequence
from statistics import median_low

import torch

from fedapp.learn.params import Params

MAX_WEIGHTS_CHANGE, MAX_STATISTICS_CHANGE = 30.0, 300.0
"""With every rule a member is left out whose weights, or whose statistics, moved more than this
many times as far as usual. The largest ratios of honest members were 5 and 41
(docs/SECURITY.md)."""


def median_length(lengths: Iterable[float]) -> float:
    """Return the median of the lengths above 0, the lower of two middle ones; 0 without any.

    A member that learned nothing has not moved, and says nothing about how far the others move.
    """
    return median_low([length for length in lengths if length > 0] or [0.0])


def length_ratios(lengths: Sequence[float], before: float) -> list[float]:
    """Return how many times as long as usual each member's change is; all 0 where nobody moved.

    A ratio above `MAX_WEIGHTS_CHANGE` is too long. lengths: of a round's members, >= 0. before: the
    largest `median_length` of earlier rounds, 0 without any. The usual length is this round's
    `median_length`, but at most `before`: in a round in which most members are bad, their median is
    no measure.
    """
    usual = min(median_length(lengths), before or math.inf)
    return [length / usual if usual else 0.0 for length in lengths]


def length(params: Params, own: Params, names: Iterable[str]) -> float:
    """Return the L2 norm of params - own over all these tensors together."""
    return math.sqrt(
        sum(float((params[n].double() - own[n].double()).square().sum()) for n in names)
    )


def rough_length(params: Params, own: Params, names: Sequence[str]) -> float:
    """Return `length` with about six correct digits in a fraction of its time.

    For numbers that are compared but not recorded. Where single precision overflows, it is
    `length`.
    """
    if not names:
        return 0.0
    moved = torch._foreach_sub([params[n] for n in names], [own[n] for n in names])
    norms = torch.stack([norm.float() for norm in torch._foreach_norm(moved)])
    far = float(torch.linalg.vector_norm(norms))
    return far if math.isfinite(far) else length(params, own, names)
