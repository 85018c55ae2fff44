"""The parts of a site's data: inputs, and what is known of their classes."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedapp.core.errors import DataError

LABELLED, UNLABELLED, BAGS, VAL, TEST = PARTS = ("labelled", "unlabelled", "bags", "val", "test")
"""Every part that there is; a site that was dealt no bags has no part of that name."""
TRAINING = (LABELLED, UNLABELLED, BAGS)
"""Parts to learn from; the others are to measure by."""
SPECIAL = {BAGS: "images in bags"}
"""Parts that a site is refused for where its method cannot learn from them, in words."""


@dataclass(frozen=True, eq=False)
class Bags:
    """Supervision by bags: nobody says an input's class, but each bag's class proportions.

    bag: int64 [n], each input's bag, in [0, B). proportions: float64 [B, C], of each bag's inputs,
    exact; a row sums to 1, that of an empty bag is 0.
    """

    bag: Tensor
    proportions: Tensor

    @property
    def filled(self) -> Tensor:
        """The proportions of the bags that hold an input, float64 [at most B, C]."""
        return self.proportions[self.bag.unique()]


Supervision = Tensor | Bags | None
"""What is known of n inputs: the class of each, int64 [n]; F findings of each, int64 [n, F], 1
where it shows one, 0 where not, `inputs.UNKNOWN` where nobody looked; bags; or nothing."""


@dataclass(frozen=True, eq=False)
class Part:
    """Inputs [n, ...], n >= 0, and their supervision; `DataError` where the two differ in length.

    Inputs are uint8 pixels or float32 numbers, of one shape in all of a site's parts.
    """

    inputs: Tensor
    supervision: Supervision = None

    def __post_init__(self) -> None:
        of = self.supervision.bag if isinstance(self.supervision, Bags) else self.supervision
        most = 1 if isinstance(self.supervision, Bags) else 2
        if of is not None and (of.shape[:1] != self.inputs.shape[:1] or of.ndim > most):
            raise DataError(
                f"part of {len(self.inputs)} inputs has labels or bags {list(of.shape)}, must be "
                f"[{len(self.inputs)}]: give one for each input"
            )

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def labels(self) -> Tensor:
        """The labels of a part that has them, int64 [n], or [n, F] of findings."""
        assert isinstance(self.supervision, Tensor), "a part without labels"
        return self.supervision

    def tensors(self) -> Iterator[Tensor]:
        """Yield all that the part consists of, in a fixed order."""
        yield self.inputs
        if isinstance(self.supervision, Bags):
            yield from (self.supervision.bag, self.supervision.proportions)
        elif self.supervision is not None:
            yield self.supervision

    def to(self, device: torch.device) -> "Part":
        """Return the same part on `device`; itself where it is there already."""
        inputs, *known = (tensor.to(device) for tensor in self.tensors())
        if inputs is self.inputs:
            return self
        bags = isinstance(self.supervision, Bags)
        return Part(inputs, Bags(*known) if bags else known[0] if known else None)

    def add_to(self, total: "hashlib._Hash") -> None:
        """Feed shape and content of every tensor to a hash."""
        for tensor in self.tensors():
            total.update(repr(tuple(tensor.shape)).encode())
            total.update(tensor.cpu().contiguous().numpy().data)
