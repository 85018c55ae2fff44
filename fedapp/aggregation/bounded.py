"""The mean of changes no longer than the median change.

It is norm bounding (Sun et al. 2019) with a bound that follows the members. It holds while the good
members of a round are more than the bad ones, and does not tell a bad model that lies among the
good ones. Each model is read twice; beside the result one model is held.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median_low

from fedapp.aggregation.base import AtOnce, Average, Member, Memory
from fedapp.aggregation.changes import length
from fedapp.learn.params import Params, weighted_mean

MOST_WEIGHT = 3
"""A member's weight is at most so many times the median weight: sites say their own numbers."""


@dataclass(frozen=True)
class Bounded(AtOnce):
    """Every number is a mean of the members' and the server's, with weights >= 0."""

    def finish(
        self, total: list[Member], own: Params, trained: Collection[str], memory: Memory
    ) -> Average:
        """Return the weighted mean of changes that are scaled down to the median length."""
        return Average(bounded_mean(total, own, trained), memory)


def bounded_mean(members: Sequence[Member], own: Params, trained: Collection[str]) -> Params:
    """Return the mean, by capped weights, of changes scaled down to the median length.

    So a member moves the weights by at most its share of the weights times that length. Variances
    that are not negative stay so.
    """
    parts = bounded_parts(own, trained)
    lengths = [
        [length(params, own, names) for names in parts]
        for params in (member.read() for member in members)
    ]
    bounds = [median_low(part) for part in zip(*lengths, strict=True)]
    near = (bounded(member.read(), own, parts, bounds) for member in members)
    return weighted_mean(zip(capped([m.weight for m in members]), near, strict=True), own)


def capped(weights: Sequence[float]) -> list[float]:
    """Return the weights, all above 0, each at most `MOST_WEIGHT` times their median.

    Of two middle ones the lower counts: half of the members cannot lift the bound.
    """
    most = MOST_WEIGHT * median_low(weights)
    return [min(weight, most) for weight in weights]


def bounded_parts(own: Params, trained: Collection[str]) -> list[list[str]]:
    """Return the names of the tensors that are bounded together: the weights, each statistic.

    A statistic has a bound of its own because its scale is not the weights': within theirs, a
    member could still send a variance of 10^30. It is scaled, not replaced, so that a site whose
    images differ is heard as far as the others are.
    """
    floating = [name for name, tensor in own.items() if tensor.is_floating_point()]
    weights = [name for name in floating if name in trained]
    return [weights, *([name] for name in floating if name not in trained)]


def bounded(
    params: Params, own: Params, parts: Sequence[Sequence[str]], bounds: Sequence[float]
) -> Params:
    """Return w_0 + min(1, bound / |w - w_0|) (w - w_0) for each part; w_0 = `own`, w = `params`."""
    out = dict(params)
    for names, bound in zip(parts, bounds, strict=True):
        far = length(params, own, names)
        if far > bound:  # otherwise not even the last bit changes
            for name in names:
                near = own[name].double().lerp(params[name].double(), bound / far)
                out[name] = near.to(own[name].dtype)
    return out


RULE = Bounded()
