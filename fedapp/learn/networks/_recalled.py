"""Answers of a network that never changes, kept by the bytes of what it was asked."""

import hashlib
import json
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor

from fedapp.learn.shelf import KEY, SHELF, read_answers, write_answers

PIECE = 16
"""Inputs that are asked at a time, filled up with zeros: other numbers would give other last bits,
and an answer must not depend on what else is asked."""
MOST = 2**26
"""Numbers that are kept, 256 MiB; what comes later is computed each time."""


class Recalled:
    """answer: [PIECE, ...] -> float32 [PIECE, width], each row by itself. Not for GPUs.

    of: all that the answers depend on beside the input, this machine's arithmetic left out.
    """

    def __init__(self, answer: Callable[[Tensor], Tensor], width: int, of: object = None) -> None:
        self._answer, self._width, self._of = answer, width, of
        self._known: dict[bytes, Tensor] = {}
        self._fresh = False  # whether some are not on the disk

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Return the answers to any number of inputs, one at least; each is computed once."""
        if (shelf := SHELF.get()) is not None:
            shelf.use(self)
        shape = str(list(x.shape[1:])).encode()
        keys = [
            blake2b(row.numpy().data, digest_size=KEY, key=shape).digest() for row in x.contiguous()
        ]
        fresh = {key: place for place, key in enumerate(keys) if key not in self._known}
        found: dict[bytes, Tensor] = {}
        order = list(fresh)
        for start in range(0, len(order), PIECE):
            some = order[start : start + PIECE]
            asked = x.new_zeros(PIECE, *x.shape[1:])
            asked[: len(some)] = x[[fresh[key] for key in some]]
            found.update(zip(some, self._answer(asked).float().clone(), strict=False))
        self._fresh |= self._take(found)
        return torch.stack([found[key] if key in found else self._known[key] for key in keys])

    def read(self, folder: Path) -> None:
        """Take what lies in a folder, of this network on a machine that computes as this one."""
        if not self._known:  # else this process read it, or found it itself
            self._take(read_answers(folder, self._name, self._width))

    def write(self, folder: Path) -> None:
        """Keep all in a folder, where there is something new."""
        if self._fresh:
            write_answers(folder, self._name, self._known)
            self._fresh = False

    def _take(self, found: dict[bytes, Tensor]) -> bool:
        """Keep answers, if there is room; return whether some were kept."""
        room = (len(self._known) + len(found)) * self._width <= MOST
        if room:
            self._known.update(found)
        return room and bool(found)

    @property
    def _name(self) -> str:
        arithmetic = torch.__version__, torch.backends.cpu.get_cpu_capability()
        of = [self._of, self._width, PIECE, *arithmetic, torch.get_num_threads()]
        return hashlib.sha256(json.dumps(of).encode()).hexdigest()
