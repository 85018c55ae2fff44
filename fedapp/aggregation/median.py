"""The coordinate-wise median (Yin et al. 2018), all members alike.

It holds while the good members of a round are more than the bad ones, and costs most where good
ones differ. Memory beside the result: one model and `HELD_BYTES`, or a copy of the largest tensor
for each member where that is more. The models are read as often as all their bytes hold
`HELD_BYTES`.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedapp.aggregation.base import AtOnce, Average, Member, Memory
from fedapp.learn.params import Params

HELD_BYTES = 2**28
"""Of all members' tensors that are held at a time."""
COORDINATES = 2**16
"""Taken at a time: the order and the doubles of a block take five times the block's bytes."""


@dataclass(frozen=True)
class Median(AtOnce):
    """Weights do not count."""

    def finish(
        self, total: list[Member], own: Params, trained: Collection[str], memory: Memory
    ) -> Average:
        """Return the `median` of every floating tensor."""
        out = {name: tensor.clone() for name, tensor in own.items()}
        floating = [name for name, tensor in own.items() if tensor.is_floating_point()]
        for name, rows in stacked(total, own, floating):
            blocks = [median(block) for block in rows.split(COORDINATES, dim=1)]
            out[name] = torch.cat(blocks).to(own[name].dtype).reshape(own[name].shape)
        return Average(out, memory)


def median(rows: Tensor) -> Tensor:
    """Return each column's median, the mean of the middle two of an even number: float64 [d].

    rows: [n, d], n > 0; who is not a number is not counted.
    """
    wide = rows.double()
    middle: Tensor = (wide.nanmedian(0).values - (-wide).nanmedian(0).values) / 2
    return middle


def stacked(
    members: Sequence[Member], own: Params, names: Iterable[str]
) -> Iterator[tuple[str, Tensor]]:
    """Yield each of these tensors of all members, [n, d]."""
    for group in _groups(own, names, len(members)):
        held: dict[str, list[Tensor]] = {name: [] for name in group}
        for params in (member.read() for member in members):
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


RULE = Median()
