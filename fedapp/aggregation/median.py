"""The coordinate-wise median (Yin et al. 2018); all members count the same.

It protects the model while more than half of a round's members are honest, and costs most accuracy
where honest members differ. Beside the result it holds one model and `MAX_HELD_BYTES` in memory, or
a copy of the largest tensor for each member where that is more. All models are read again for each
`MAX_HELD_BYTES` of their total size.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedapp.aggregation.base import AtOnce, Average, Member, Memory
from fedapp.learn.params import Params

MAX_HELD_BYTES = 2**28
"""Bytes of all members' tensors that are held at a time."""
BLOCK_COORDINATES = 2**16
"""Coordinates that are handled at a time: sorting a block in double precision takes five times the
block's bytes."""


@dataclass(frozen=True)
class Median(AtOnce):
    """Every member counts the same, whatever its weight."""

    def finish(
        self, total: list[Member], own: Params, trained: Collection[str], memory: Memory
    ) -> Average:
        """Return the `median` of every floating-point tensor."""
        out = {name: tensor.clone() for name, tensor in own.items()}
        floating = [name for name, tensor in own.items() if tensor.is_floating_point()]
        for name, rows in stacked(total, own, floating):
            blocks = [median(block) for block in rows.split(BLOCK_COORDINATES, dim=1)]
            out[name] = torch.cat(blocks).to(own[name].dtype).reshape(own[name].shape)
        return Average(out, memory)


def median(rows: Tensor) -> Tensor:
    """Return the median of each column, the mean of the middle two of an even number: float64 [d].

    rows: [n, d], n > 0; NaN is not counted.
    """
    wide = rows.double()
    middle: Tensor = (wide.nanmedian(0).values - (-wide).nanmedian(0).values) / 2
    return middle


def stacked(
    members: Sequence[Member], own: Params, names: Iterable[str]
) -> Iterator[tuple[str, Tensor]]:
    """Yield each of these tensors of all members, as rows [n, d]."""
    for group in _groups(own, names, len(members)):
        held: dict[str, list[Tensor]] = {name: [] for name in group}
        for params in (member.read() for member in members):
            for name in group:
                # A copy: a view of a model's bytes would keep the whole model in memory.
                held[name].append(params[name].flatten().clone())
        for name in group:
            yield name, torch.stack(held.pop(name))


def _groups(own: Params, names: Iterable[str], members: int) -> Iterator[list[str]]:
    """Yield the names in groups, each as large as can be held of all members; at least one name."""
    group: list[str] = []
    size = 0
    for name in names:
        tensor = own[name]
        if group and size + members * tensor.nbytes > MAX_HELD_BYTES:
            yield group
            group, size = [], 0
        group.append(name)
        size += members * tensor.nbytes
    yield group


RULE = Median()
