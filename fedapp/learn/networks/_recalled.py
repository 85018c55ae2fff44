"""Answers of a network that never changes, kept by the bytes of what it was asked."""

from collections.abc import Callable
from hashlib import blake2b

import torch
from torch import Tensor

PIECE = 16
"""Inputs that are asked at a time, filled up with zeros: other numbers would give other last bits,
and an answer must not depend on what else is asked."""
MOST = 2**26
"""Numbers that are kept, 256 MiB; what comes later is computed each time."""


class Recalled:
    """answer: [PIECE, ...] -> float32 [PIECE, d], each row by itself. Not for GPUs."""

    def __init__(self, answer: Callable[[Tensor], Tensor]) -> None:
        self._answer = answer
        self._known: dict[bytes, Tensor] = {}
        self._kept = 0

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Return the answers to any number of inputs, one at least; each is computed once."""
        keys = [blake2b(row.numpy().data, digest_size=16).digest() for row in x.contiguous()]
        fresh = {key: place for place, key in enumerate(keys) if key not in self._known}
        found: dict[bytes, Tensor] = {}
        order = list(fresh)
        for start in range(0, len(order), PIECE):
            some = order[start : start + PIECE]
            asked = x.new_zeros(PIECE, *x.shape[1:])
            asked[: len(some)] = x[[fresh[key] for key in some]]
            found.update(zip(some, self._answer(asked).float().clone(), strict=False))
        if (more := self._kept + sum(map(len, found.values()))) <= MOST:
            self._known.update(found)
            self._kept = more
        return torch.stack([found[key] if key in found else self._known[key] for key in keys])
