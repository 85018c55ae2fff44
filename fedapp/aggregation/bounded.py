"""The mean of the members' changes, each scaled down to at most the median length of a change.

This is norm bounding (Sun et al. 2019) with a bound that is taken from the members. It protects the
model while more than half of a round's members are honest. It cannot detect a bad model that lies
among the good ones. Each model is read twice; beside the result one model is held in memory.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median_low

from fedapp.aggregation.base import AtOnce, Average, Member, Memory
from fedapp.aggregation.changes import length
from fedapp.learn.params import Params, weighted_mean

MAX_WEIGHT_RATIO = 3
"""A member's weight is cut to this many times the median weight, since sites report their own
numbers of images."""


@dataclass(frozen=True)
class Bounded(AtOnce):
    """Every number of the result is a weighted mean of members' and the server's, weights >= 0."""

    def finish(
        self, total: list[Member], own: Params, trained: Collection[str], memory: Memory
    ) -> Average:
        """Return the weighted mean of the changes after scaling each down to the median length."""
        return Average(bounded_mean(total, own, trained), memory)


def bounded_mean(members: Sequence[Member], own: Params, trained: Collection[str]) -> Params:
    """Return the mean, by capped weights, of the changes after scaling down to the median length.

    So a member moves the model by at most its share of the weights times that length. Variances
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
    """Return the weights, all above 0, cut to `MAX_WEIGHT_RATIO` times their median.

    Of an even number of weights the lower middle one is the median: half of the members cannot
    raise the limit.
    """
    most = MAX_WEIGHT_RATIO * median_low(weights)
    return [min(weight, most) for weight in weights]


def bounded_parts(own: Params, trained: Collection[str]) -> list[list[str]]:
    """Return the names of tensors that are bounded together: all weights, then each statistic.

    Each statistic has its own bound because its scale differs from that of the weights: within the
    bound of the weights a member could still send a variance of 10^30. It is scaled like the
    weights rather than replaced, so that a site whose images differ still contributes.
    """
    floating = [name for name, tensor in own.items() if tensor.is_floating_point()]
    weights = [name for name in floating if name in trained]
    return [weights, *([name] for name in floating if name not in trained)]


def bounded(
    params: Params, own: Params, parts: Sequence[Sequence[str]], bounds: Sequence[float]
) -> Params:
    """Return each part moved at most `bound` away from the server's model.

    That is w_0 + min(1, bound / |w - w_0|) (w - w_0) with w_0 = `own` and w = `params`.
    """
    out = dict(params)
    for names, bound in zip(parts, bounds, strict=True):
        far = length(params, own, names)
        if far > bound:  # otherwise not even the last bit changes
            for name in names:
                near = own[name].double().lerp(params[name].double(), bound / far)
                out[name] = near.to(own[name].dtype)
    return out


RULE = Bounded()
