"""What frozen networks said of a site's images, kept on its disk from one start to the next."""

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedapp.ground.disk import write_atomic
from fedapp.ground.errors import StoreError

log = logging.getLogger(__name__)

KEY = 16
"""Bytes of an input's key."""
NETWORKS = 2
"""Files kept, those used last: one for each network. Each is as large as what is held in memory."""


class Kept(Protocol):
    """What takes its answers from a folder, and lays them there."""

    def read(self, folder: Path) -> None:
        """Take what is there; once."""

    def write(self, folder: Path) -> None:
        """Lay there what is new."""


class Shelf:
    """A folder, and whose answers were asked for while it was the place for them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._used: dict[int, Kept] = {}

    def use(self, kept: Kept) -> None:
        """Read, the first time."""
        if id(kept) not in self._used:
            self._used[id(kept)] = kept
            kept.read(self._folder)

    def put_back(self) -> None:
        """Write what is new."""
        for kept in self._used.values():
            kept.write(self._folder)


SHELF: ContextVar[Shelf | None] = ContextVar("shelf", default=None)


@contextmanager
def features_in(folder: Path | None) -> Iterator[None]:
    """While it is open, frozen networks read what they said from a folder; then add what is new.

    None: they remember for as long as the process lives. A folder that cannot be written to costs
    a line and time, no more.
    """
    if folder is None:
        yield
        return
    shelf = Shelf(folder)
    token = SHELF.set(shelf)
    try:
        yield
    finally:
        SHELF.reset(token)
        shelf.put_back()


def read_answers(folder: Path, name: str, width: int) -> dict[bytes, Tensor]:
    """Return answers float32 [width] by input; none where there is no file of this name.

    Whatever is damaged, or of another network, gives none and a line.
    """
    path = folder / f"{name}.safetensors"
    if not path.exists():
        return {}
    try:
        found = load(path.read_bytes())
        keys, answers = found["keys"], found["answers"]
        whole = keys.shape == (len(keys), KEY) and answers.shape == (len(keys), width)
        if not (whole and torch.equal(found["check"], _check(name, keys, answers))):
            raise ValueError
        os.utime(path)  # used last
    except (SafetensorError, KeyError, ValueError, OSError):
        log.warning("features in %s are damaged or of another network; computing them again", path)
        return {}
    return {key.numpy().tobytes(): answer for key, answer in zip(keys, answers, strict=True)}


def write_answers(folder: Path, name: str, known: Mapping[bytes, Tensor]) -> None:
    """Keep answers [d] by input, one at least, in the place of those of this name."""
    keys = torch.frombuffer(bytearray(b"".join(known)), dtype=torch.uint8).view(-1, KEY)
    answers = torch.stack(list(known.values()))
    blob = save({"keys": keys, "answers": answers, "check": _check(name, keys, answers)})
    try:
        write_atomic(folder / f"{name}.safetensors", blob, durable=False)
        files = sorted(folder.glob("*.safetensors"), key=lambda p: p.stat().st_mtime_ns)
        for old in files[:-NETWORKS]:
            old.unlink(missing_ok=True)
    except (StoreError, OSError) as error:  # a full disk costs time, not the round
        log.warning("features not kept in %s (%s); computing them again next time", folder, error)


def _check(name: str, keys: Tensor, answers: Tensor) -> Tensor:
    """Return the SHA-256 of what a file holds, uint8 [32]; equal bits alone have an equal one."""
    found = hashlib.sha256(name.encode())
    found.update(keys.numpy().tobytes())
    found.update(answers.numpy().tobytes())
    return torch.frombuffer(bytearray(found.digest()), dtype=torch.uint8)
