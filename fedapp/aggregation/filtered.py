"""Members whose changes point away from the others', or are far too long, are left out.

Of the rest it is "bounded". Cosines and a bound that follows the median are FLAME's (Nguyen et al.
2022). FLAME clusters the changes of one round; this rule remembers what each site has sent so far.
So it holds in a round with more bad members than good ones, where the bad ones were known before.
Memory is as in "median".
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median_high

import torch
from torch import Tensor

from fedapp.aggregation.base import AtOnce, Average, Member, Memory
from fedapp.aggregation.bounded import bounded_mean
from fedapp.aggregation.median import COORDINATES, median, stacked
from fedapp.learn.params import Params

LONG = 4.0
"""A change is far too long above so many times the median length."""
AWAY = -0.2
"""Agreement of a site whose change was far too long: as if it had pointed away from the others."""


@dataclass(frozen=True)
class Filtered(AtOnce):
    """It remembers of each site how far its changes agreed with the others'."""

    def finish(
        self, total: list[Member], own: Params, trained: Collection[str], memory: Memory
    ) -> Average:
        """Return "bounded" of the members that agree; take note how far each does."""
        before = [memory.sites.get(member.site, 0.0) for member in total]
        found = agreement(products(total, own, trained), before)
        sites = {member.site: agreed for member, agreed in zip(total, found, strict=True)}
        heard = [member for member, agreed in zip(total, found, strict=True) if agreed >= 0]
        mean = bounded_mean(heard, own, trained) if heard else None
        left_out = tuple(site for site, agreed in sites.items() if agreed < 0)
        return Average(mean, Memory({**memory.sites, **sites}, memory.tensors), left_out)


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


def products(members: Sequence[Member], own: Params, trained: Collection[str]) -> Tensor:
    """Return the scalar products of the members' changes of these tensors: float64 [n, n].

    They are added in the order of `own`, since that of a set differs from process to process.
    """
    total = torch.zeros(len(members), len(members), dtype=torch.float64)
    for name, rows in stacked(members, own, [name for name in own if name in trained]):
        blocks = zip(
            rows.split(COORDINATES, dim=1), own[name].flatten().split(COORDINATES), strict=True
        )
        for block, start in blocks:
            changes = block.double() - start.double()
            total += changes @ changes.T
    return total


RULE = Filtered()
