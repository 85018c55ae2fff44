"""A cache of the answers of frozen networks, by the bytes of their inputs.

Answers are cached in this process and, between two starts of a site, in a folder of the site.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor

from fedapp.core.cache import Cache, CacheFiles

KEY_BYTES = 16
"""Length of an input's key."""
INPUTS_PER_CALL = 16
"""Inputs in each call of the network. The last call is filled up with zeros: with another batch
size the last bits of an answer would differ, and an answer must not depend on which other inputs
are asked about.
"""
MAX_CACHED_NUMBERS = 2**26
"""Numbers cached for a network, 256 MiB. Answers beyond that are computed each time."""
MAX_DISK_BYTES = 640 * 2**20
"""Bytes in the folder of a site: room for two networks with `MAX_CACHED_NUMBERS` numbers each, and
for the keys of their inputs.
"""

Answers = dict[bytes, Tensor]
"""Answers, float32 [width], by the key of their input."""


class CachedAnswers:
    """Answers of a frozen network, each computed once. Not for GPUs.

    answer: the network, [INPUTS_PER_CALL, ...] -> float32 [INPUTS_PER_CALL, width]; each row
        depends on its own input only.
    of: everything that the answers depend on beside the input, except this machine's arithmetic. It
        must be JSON.
    """

    def __init__(self, answer: Callable[[Tensor], Tensor], width: int, of: object = None) -> None:
        self._answer, self._width, self._of = answer, width, of
        self._known: Answers = {}
        self._fresh = False  # whether there are answers that are not on disk

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Return the answers to one or more inputs, float32 [n, width]."""
        if (place := _DISK_FOLDER.get()) is not None and self not in place.asked:
            place.asked.append(self)
            self._read(place.cache)
        shape = str(list(x.shape[1:])).encode()
        keys = [
            blake2b(row.numpy().data, digest_size=KEY_BYTES, key=shape).digest()
            for row in x.contiguous()
        ]
        fresh = {key: place for place, key in enumerate(keys) if key not in self._known}
        found: Answers = {}
        order = list(fresh)
        for start in range(0, len(order), INPUTS_PER_CALL):
            some = order[start : start + INPUTS_PER_CALL]
            asked = x.new_zeros(INPUTS_PER_CALL, *x.shape[1:])
            asked[: len(some)] = x[[fresh[key] for key in some]]
            found.update(zip(some, self._answer(asked).float().clone(), strict=False))
        self._fresh |= self._take(found)
        return torch.stack([found[key] if key in found else self._known[key] for key in keys])

    def keep(self, cache: Cache[Answers]) -> None:
        """Write all cached answers to a folder's cache, if there are new ones."""
        if self._fresh:
            cache.put(self._name, self._known)
            self._fresh = False

    def _read(self, cache: Cache[Answers]) -> None:
        """Read this network's answers, as a machine with equal arithmetic wrote them."""
        if not self._known:  # otherwise this process has answers already
            self._take(cache.get(self._name) or {})

    def _take(self, found: Answers) -> bool:
        """Cache these answers if there is room; return whether there was and there were any."""
        room = (len(self._known) + len(found)) * self._width <= MAX_CACHED_NUMBERS
        if room:
            self._known.update(found)
        return room and bool(found)

    @property
    def _name(self) -> str:
        arithmetic = torch.__version__, torch.backends.cpu.get_cpu_capability()
        of = [self._of, self._width, INPUTS_PER_CALL, *arithmetic, torch.get_num_threads()]
        return hashlib.sha256(json.dumps(of).encode()).hexdigest()


@dataclass(frozen=True)
class _DiskFolder:
    """The cache of the current folder, and the networks that were asked while it was current."""

    cache: Cache[Answers]
    asked: list[CachedAnswers] = field(default_factory=list)


_DISK_FOLDER: ContextVar[_DiskFolder | None] = ContextVar("place", default=None)


@contextmanager
def answers_cached_in(folder: Path | None) -> Iterator[None]:
    """Within the context, frozen networks use the answers cached in a folder; then add new ones.

    folder: None: answers are cached only as long as the process lives. If the folder cannot be
        written, a line is logged and the answers are computed again at the next start.
    """
    if folder is None:
        yield
        return
    place = _DiskFolder(
        Cache(MAX_DISK_BYTES, CacheFiles(folder, "features", _to_bytes, _from_bytes))
    )
    token = _DISK_FOLDER.set(place)
    try:
        yield
    finally:
        _DISK_FOLDER.reset(token)
        for network in place.asked:
            network.keep(place.cache)


def _to_bytes(known: Answers) -> bytes:
    keys = torch.frombuffer(bytearray(b"".join(known)), dtype=torch.uint8).view(-1, KEY_BYTES)
    return save({"keys": keys, "answers": torch.stack(list(known.values()))})


def _from_bytes(blob: bytes) -> Answers:
    found = load(blob)
    pairs = zip(found["keys"], found["answers"], strict=True)
    return {key.numpy().tobytes(): answer for key, answer in pairs}
