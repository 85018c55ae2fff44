"""Members whose changes point away from the others', or are far too long, are left out.

The rest is averaged as by "bounded". The cosines and a length limit that follows the median are
from FLAME (Nguyen et al. 2022). FLAME clusters the changes of a single round; this rule remembers
how each site's earlier changes agreed with the others'. So it still protects a round in which most
members are bad, if these were known to be bad before. It needs as much memory as "median".
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median_high

import torch
from torch import Tensor

from fedapp.aggregation.base import AtOnce, Average, Member, Memory
from fedapp.aggregation.bounded import bounded_mean
from fedapp.aggregation.median import BLOCK_COORDINATES, median, stacked
from fedapp.learn.params import Params

MAX_LENGTH_RATIO = 4.0
"""A change longer than this many times the median length is far too long."""
TOO_LONG_AGREEMENT = -0.2
"""The agreement of a member whose change was far too long: as if it had pointed away from the
others."""


@dataclass(frozen=True)
class Filtered(AtOnce):
    """The rule remembers how far the changes of each site agreed with the others'."""

    def finish(
        self, total: list[Member], own: Params, trained: Collection[str], memory: Memory
    ) -> Average:
        """Return "bounded" of the members that agree; remember the agreement of every member."""
        before = [memory.sites.get(member.site, 0.0) for member in total]
        found = agreement(scalar_products(total, own, trained), before)
        sites = {member.site: agreed for member, agreed in zip(total, found, strict=True)}
        heard = [member for member, agreed in zip(total, found, strict=True) if agreed >= 0]
        mean = bounded_mean(heard, own, trained) if heard else None
        left_out = tuple(site for site, agreed in sites.items() if agreed < 0)
        return Average(mean, Memory({**memory.sites, **sites}, memory.tensors), left_out)


def agreement(products: Tensor, before: Sequence[float]) -> list[float]:
    """Return how far each member's changes have agreed with the others'; below 0 it is left out.

    products: scalar products of the members' changes, float64 [n, n]. before: what this function
    returned when each member was judged last; 0 for a new one. A member's agreement is half of
    `before` plus the median cosine between its change and those of the trusted members. Trusted is
    who had no negative agreement before; then, while the lowest agreement of a trusted member is
    below 0, that member stops being trusted and all are judged again. A member whose change is
    longer than `MAX_LENGTH_RATIO` times the median length has the cosine part replaced: its
    agreement is `TOO_LONG_AGREEMENT`. That median is over members that had no negative agreement
    before; of two middle lengths the larger counts, since sites without labels change little.
    Results are in (-2, 2).

    Only half of `before` counts because an honest change sometimes points a little away, while an
    attacker's does so every time.
    """
    past = torch.tensor(before, dtype=torch.float64)
    lengths = products.diagonal().sqrt()
    cosines = products / torch.outer(lengths, lengths).clamp_min(1e-300)  # 0 for no change
    cosines.fill_diagonal_(math.nan)  # a member does not vote on itself
    trusted = [i for i, agreed in enumerate(before) if agreed >= 0]
    most = MAX_LENGTH_RATIO * median_high(lengths[trusted].tolist() or [math.inf])
    while trusted:
        now = past / 2 + median(cosines[trusted]).nan_to_num(0.0)  # nobody votes
        now[lengths > most] = TOO_LONG_AGREEMENT
        least = min(trusted, key=lambda i: float(now[i]))
        if now[least] >= 0:
            found: list[float] = now.tolist()
            return found
        trusted.remove(least)
    return [agreed / 2 for agreed in before]  # nobody here can judge


def scalar_products(members: Sequence[Member], own: Params, trained: Collection[str]) -> Tensor:
    """Return the scalar products of the members' changes of these tensors, float64 [n, n].

    Tensors are added up in the order of `own`: the order of a set differs from process to process,
    and with it the rounding.
    """
    total = torch.zeros(len(members), len(members), dtype=torch.float64)
    for name, rows in stacked(members, own, [name for name in own if name in trained]):
        starts = own[name].flatten().split(BLOCK_COORDINATES)
        blocks = zip(rows.split(BLOCK_COORDINATES, dim=1), starts, strict=True)
        for block, start in blocks:
            changes = block.double() - start.double()
            total += changes @ changes.T
    return total


RULE = Filtered()
