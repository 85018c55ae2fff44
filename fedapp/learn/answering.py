"""What sites' networks answer to few images, as one batch (`learn/grouped`).

A network that came back as somebody else's answers as it did: equal weights are no special case.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedapp.learn.networks.base import Network
from fedapp.learn.together import group_of, known_of, lots_of

FEW = 8
"""Images of a site, at most: of more, a wider network answers faster by itself."""


@dataclass(frozen=True, eq=False)
class Question:
    """What one site asks for: the network's probabilities for each set of images, `FEW` in all.

    normalise: uint8 images, or numbers -> float32 as the network takes them.
    """

    model: Network
    sets: Sequence[Tensor]
    normalise: Callable[[Tensor], Tensor]

    @property
    def rows(self) -> tuple[int, ...]:
        """Of each set with images: their number, filled up to a power of two.

        A product of matrices has other last bits with other numbers of rows: so a set's are its
        own, and sets of unlike sizes can share a product.
        """
        return tuple(2 ** max((len(one) - 1).bit_length(), 1) for one in self.sets if len(one))

    def kind(self) -> Hashable:
        """Return what those have in common who can be answered as one batch."""
        return known_of(self.model).kind, self.rows

    def inputs(self) -> Tensor:
        """Return all sets' images, filled up with zeros, as the network takes them."""
        parts = []
        for one, rows in zip(filter(len, self.sets), self.rows, strict=True):
            spare = rows - len(one)
            parts += [one, one.new_zeros(spare, *one.shape[1:])] if spare else [one]
        return self.normalise(parts[0] if len(parts) == 1 else torch.cat(parts))


@torch.no_grad()
def answered(asked: Sequence[Question]) -> list[list[Tensor]]:
    """Return for each its sets' probabilities, float32 [n, C] on the CPU.

    Bit for bit the same, whoever else asks. All are of networks that `together.fits`.
    """
    found: dict[int, list[Tensor]] = {}
    alike: dict[Hashable, list[int]] = {}
    for place, one in enumerate(asked):
        alike.setdefault(one.kind(), []).append(place)
    for places in alike.values():
        for lot in lots_of(places):
            found.update(zip(lot, _lot([asked[place] for place in lot]), strict=True))
    return [found[place] for place in range(len(asked))]


def _lot(lot: Sequence[Question]) -> list[list[Tensor]]:
    """Answer those of one kind, `MEMBERS` at most."""
    group = group_of(lot[0].model, len(lot))
    group.load([known_of(one.model).tensors for one in lot])
    group.modes([False] * len(known_of(lot[0].model).modules))
    inputs = [one.inputs() for one in lot]
    inputs += inputs[-1:] * (group.size - len(lot))
    logits = group.answers(inputs, lot[0].rows)
    every = [lot[0].model.answer(each.contiguous()).cpu() for each in logits]
    none = every[0].new_empty(0, every[0].shape[2])
    answers = []
    for member, one in enumerate(lot):
        mine = (each[member] for each in every)
        answers.append([next(mine)[: len(images)] if len(images) else none for images in one.sets])
    return answers
