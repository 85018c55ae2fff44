"""Averages that a few bad models cannot move far.

A server that takes the weighted mean lets one member choose the result (Blanchard et al. 2017).
Three rules take its place. "bounded": the mean of changes no longer than the median change, as in
norm bounding (Sun et al. 2019), with a bound that follows the members. "median": the
coordinate-wise median of Yin et al. 2018. Both hold while the good members of a round are more than
the bad ones, and neither tells a bad model that lies among the good ones.

"filtered" leaves members out: those whose changes point away from the others' or are far too long
(`agreement`), and takes "bounded" of the rest. Cosines and a bound that follows the median are
FLAME's (Nguyen et al. 2022). FLAME clusters the changes of one round; this rule remembers what each
site has sent so far. So it holds in a round with more bad members than good ones, where the bad
ones were known before.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from statistics import median_high, median_low

import torch
from torch import Tensor

from fedapp.ground.settings import Robust
from fedapp.learn.params import Params, weighted_mean

MOST_WEIGHT = 3
"""A member's weight is at most so many times the median weight: sites say their own numbers."""
HELD_BYTES = 2**28
"""Of all members' tensors that "median" and "filtered" hold at a time."""
FAR, FAR_STATISTICS = 30.0, 300.0
"""A change of weights, and of statistics, is left out above so many times the usual length, by
every rule. Honest ones were at most 5 and 41 times as long (docs/SECURITY.md)."""
LONG = 4.0
"""A change is far too long above so many times the median length."""
AWAY = -0.2
"""Agreement of a site whose change was far too long: as if it had pointed away from the others."""
_COORDINATES = 2**16
"""Taken at a time: the order and the doubles of a block take five times the block's bytes."""


def robust_mean(
    rule: Robust,
    weights: Sequence[float],
    models: Callable[[], Iterable[Params]],
    own: Params,
    trained: Collection[str],
) -> Params:
    """Return the members' average by a rule other than "none"; "filtered": of those that are left.

    weights: >= 0, of each member; those of weight 0 are left out. With nobody left the result is
    `own`, the server's last model. models: gives the members in the order of the weights,
    anew at each call. trained: the tensors that training moves; other floating ones are statistics.
    Integer tensors are `own`'s. Variances that are not negative stay so: every number is a mean of
    the members' and the server's, with weights that are not negative.

    Memory beside `own` and the result: one model for "bounded", which reads each model twice; for
    "median" one model and `HELD_BYTES`, or a copy of the largest tensor for each member where
    that is more. It reads the models as often as all their bytes hold `HELD_BYTES`.
    """
    limited = capped(weights)
    members = [weight for weight in limited if weight > 0]

    def present() -> Iterator[Params]:
        return (p for weight, p in zip(limited, models(), strict=True) if weight > 0)

    if rule in ("bounded", "filtered") or not members:
        return _bounded_mean(members, present, own, trained)
    return _median(len(members), present, own)


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


def middle(lengths: Iterable[float]) -> float:
    """Return the median of the lengths above 0, of two middle ones the lower; 0 without any.

    Who learned nothing has not moved, and says nothing of how far others do.
    """
    return median_low([length for length in lengths if length > 0] or [0.0])


def times(lengths: Sequence[float], before: float) -> list[float]:
    """Return how many times as long as usual each change is; above `FAR` it is too long.

    lengths: of a round's members, >= 0. before: the largest `middle` of earlier rounds, 0 without
    any. Usual is this round's `middle`, but no more than `before`: in a round in which most members
    are bad, their median is no measure. All are 0 where nobody moved.
    """
    usual = min(middle(lengths), before or math.inf)
    return [length / usual if usual else 0.0 for length in lengths]


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


def rough_length(params: Params, own: Params, names: Sequence[str]) -> float:
    """Return `length` to about six digits, in a fraction of its time: for what is not written down.

    Where single precision cannot hold the squares, it is `length`.
    """
    norms = [float((params[n] - own[n]).float().norm()) for n in names]
    far = math.hypot(*norms)
    return far if math.isfinite(far) else length(params, own, names)


def _median(members: int, models: Callable[[], Iterable[Params]], own: Params) -> Params:
    """Return the `median` of every floating tensor."""
    out = {name: tensor.clone() for name, tensor in own.items()}
    floating = [name for name, tensor in own.items() if tensor.is_floating_point()]
    for name, rows in _rows(models, own, floating, members):
        blocks = [median(block) for block in rows.split(_COORDINATES, dim=1)]
        out[name] = torch.cat(blocks).to(own[name].dtype).reshape(own[name].shape)
    return out


def median(rows: Tensor) -> Tensor:
    """Return each column's median, the mean of the middle two of an even number: float64 [d].

    rows: [n, d], n > 0; who is not a number is not counted.
    """
    wide = rows.double()
    middle: Tensor = (wide.nanmedian(0).values - (-wide).nanmedian(0).values) / 2
    return middle


def agreement(products: Tensor, before: Sequence[float]) -> list[float]:
    """Return how far each member's changes have agreed with the others': it is heard from 0 on.

    products: float64 [n, n], of the members' changes. before: what this function returned when each
    was judged last; 0 for a new one. A member's agreement is half of that and the median cosine of
    its change with those of the trusted members. Trusted are those whose agreement was not
    negative, without the one that agrees least as long as that is below 0. A member has `AWAY`
    where its change is longer than `LONG` times the median change of those whose agreement was not
    negative. Of two middle changes the longer counts: sites without labels change little. Results
    are in (-2, 2).

    Half: an honest change now and then points a little away, a site that attacks does every time.
    """
    past = torch.tensor(before, dtype=torch.float64)
    lengths = products.diagonal().sqrt()
    cosines = products / torch.outer(lengths, lengths).clamp_min(1e-300)  # 0 for no change
    cosines.fill_diagonal_(math.nan)  # a member does not vote on itself
    trusted = [i for i, agreed in enumerate(before) if agreed >= 0]
    most = LONG * median_high(lengths[trusted].tolist() or [math.inf])
    while trusted:
        now = past / 2 + median(cosines[trusted]).nan_to_num(0.0)  # nobody votes
        now[lengths > most] = AWAY
        least = min(trusted, key=lambda i: float(now[i]))
        if now[least] >= 0:
            found: list[float] = now.tolist()
            return found
        trusted.remove(least)
    return [agreed / 2 for agreed in before]  # nobody here can judge


def products(
    models: Callable[[], Iterable[Params]], own: Params, names: Collection[str], members: int
) -> Tensor:
    """Return the scalar products of the members' changes of these tensors: float64 [n, n].

    models and memory: as in `robust_mean` for "median".
    """
    total = torch.zeros(members, members, dtype=torch.float64)
    for name, rows in _rows(models, own, names, members):
        blocks = zip(
            rows.split(_COORDINATES, dim=1), own[name].flatten().split(_COORDINATES), strict=True
        )
        for block, start in blocks:
            changes = block.double() - start.double()
            total += changes @ changes.T
    return total


def _rows(
    models: Callable[[], Iterable[Params]], own: Params, names: Iterable[str], members: int
) -> Iterator[tuple[str, Tensor]]:
    """Yield each of these tensors of all members, [n, d]."""
    for group in _groups(own, names, members):
        held: dict[str, list[Tensor]] = {name: [] for name in group}
        for params in models():
            for name in group:
                # A copy: a view of a model's bytes would keep the whole model in memory.
                held[name].append(params[name].flatten().clone())
        for name in group:
            yield name, torch.stack(held.pop(name))


def _groups(own: Params, names: Iterable[str], members: int) -> Iterator[list[str]]:
    """Yield these names, as many at a time as can be held of all members, at least one."""
    group: list[str] = []
    size = 0
    for name in names:
        tensor = own[name]
        if group and size + members * tensor.nbytes > HELD_BYTES:
            yield group
            group, size = [], 0
        group.append(name)
        size += members * tensor.nbytes
    yield group
