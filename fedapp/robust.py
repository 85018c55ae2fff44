"""Averages that a few bad models cannot move far.

A server that takes the weighted mean lets one member choose the result (Blanchard et al. 2017).
Three rules take its place. "bounded": the mean of changes no longer than the median change, as in
norm bounding (Sun et al. 2019), with a bound that follows the members. "median" and "trimmed":
the coordinate-wise median and trimmed mean of Yin et al. 2018. All three hold while the good
members of a round are more than the bad ones (trimmed: while the bad ones are no more than it
cuts); none tells a bad model that lies among the good ones.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from statistics import median_low

import torch
from torch import Tensor

from fedapp.params import Params, weighted_mean
from fedapp.settings import Robust

MOST_WEIGHT = 3
"""A member's weight is at most so many times the median weight: sites say their own numbers."""
TRIMMED_TENTHS = 3
"""Tenths of the members, rounded down, that "trimmed" cuts at either end."""
HELD_BYTES = 2**28
"""Of all members' tensors that "median" and "trimmed" hold at a time."""
_COORDINATES = 2**16
"""Sorted at a time: the order and the doubles of a block take five times the block's bytes."""


def robust_mean(
    rule: Robust,
    weights: Sequence[float],
    models: Callable[[], Iterable[Params]],
    own: Params,
    trained: Collection[str],
) -> Params:
    """Return the members' average by a rule other than "none".

    weights: >= 0, of each member; those of weight 0 are left out, and where nobody is left the
    result is `own`, the server's last model. models: gives the members in the order of the weights,
    anew at each call. trained: the tensors that training moves; other floating ones are statistics.
    Integer tensors are `own`'s. Variances that are not negative stay so: every number is a mean of
    the members' and the server's, with weights that are not negative.

    Memory beside `own` and the result: one model for "bounded", which reads each model twice; for
    the others one model and `HELD_BYTES`, or a copy of the largest tensor for each member where
    that is more. They read the models as often as all their bytes hold `HELD_BYTES`.
    """
    limited = capped(weights)
    members = [weight for weight in limited if weight > 0]

    def present() -> Iterator[Params]:
        return (p for weight, p in zip(limited, models(), strict=True) if weight > 0)

    if rule == "bounded" or not members:
        return _bounded_mean(members, present, own, trained)
    if rule == "median":
        return _middle_mean([1.0] * len(members), present, own, (len(members) - 1) // 2)
    return _middle_mean(members, present, own, TRIMMED_TENTHS * len(members) // 10)


def capped(weights: Sequence[float]) -> list[float]:
    """Return the weights, each at most `MOST_WEIGHT` times the median of those above 0.

    Of two middle ones the lower counts: half of the members cannot lift the bound.
    """
    most = MOST_WEIGHT * median_low([weight for weight in weights if weight > 0] or [0.0])
    return [min(weight, most) for weight in weights]


def _bounded_mean(
    weights: Sequence[float],
    models: Callable[[], Iterable[Params]],
    own: Params,
    trained: Collection[str],
) -> Params:
    """Return the weighted mean of members whose changes are scaled down to the median length.

    So a member moves the weights by at most its share of the weights times that length.
    """
    parts = bounded_parts(own, trained)
    lengths = [[length(params, own, names) for names in parts] for params in models()]
    bounds = [median_low(part) for part in zip(*lengths, strict=True)]
    near = (bounded(params, own, parts, bounds) for params in models())
    return weighted_mean(zip(weights, near, strict=True), own)


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


def length(params: Params, own: Params, names: Iterable[str]) -> float:
    """Return the L2 norm of params - own over these tensors together."""
    return math.sqrt(
        sum(float((params[n].double() - own[n].double()).square().sum()) for n in names)
    )


def _middle_mean(
    weights: Sequence[float], models: Callable[[], Iterable[Params]], own: Params, cut: int
) -> Params:
    """Return `middle` of every floating tensor."""
    out = {name: tensor.clone() for name, tensor in own.items()}
    shares = torch.tensor(weights, dtype=torch.float64)
    for names in _groups(own, len(weights)):
        held: dict[str, list[Tensor]] = {name: [] for name in names}
        for params in models():
            for name in names:
                # A copy: a view of a model's bytes would keep the whole model in memory.
                held[name].append(params[name].flatten().clone())
        for name in names:
            rows = torch.stack(held.pop(name))
            blocks = [middle(block, shares, cut) for block in rows.split(_COORDINATES, dim=1)]
            out[name] = torch.cat(blocks).to(own[name].dtype).reshape(own[name].shape)
    return out


def middle(rows: Tensor, weights: Tensor, cut: int) -> Tensor:
    """Return the weighted mean of each column without its `cut` lowest and highest: float64 [d].

    rows: [n, d]. weights: float64 [n], > 0. cut: in [0, n / 2). Of equal numbers at the border
    those of the first members count as lower.
    """
    ordered, order = torch.sort(rows, dim=0, stable=True)
    kept = slice(cut, len(rows) - cut)
    shares = weights[order[kept]]
    mean: Tensor = (ordered[kept].double() * shares).sum(0) / shares.sum(0)
    return mean


def _groups(own: Params, members: int) -> Iterator[list[str]]:
    """Yield names of floating tensors, as many as can be held of all members, at least one."""
    group: list[str] = []
    size = 0
    for name, tensor in own.items():
        if not tensor.is_floating_point():
            continue
        if group and size + members * tensor.nbytes > HELD_BYTES:
            yield group
            group, size = [], 0
        group.append(name)
        size += members * tensor.nbytes
    yield group
