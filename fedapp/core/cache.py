"""The one cache of the project: values that can be computed again, by key, in a budget of bytes.

A cache saves time and nothing else. A value that is not in it, or whose file is damaged, is
computed again with the same result.
"""

import hashlib
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from fedapp.core.disk import TEMPORARY, is_stale, write_atomic
from fedapp.core.errors import StoreError

log = logging.getLogger(__name__)

Value = TypeVar("Value")

_CHECKSUM_BYTES = 32
"""Length of the SHA-256 checksum at the beginning of every file."""
_ASSUMED_BYTES = 1024
"""Size that is assumed of a value whose size cannot be told."""


@dataclass(frozen=True)
class CacheFiles(Generic[Value]):
    """How a cache also keeps its values on the disk, where the next process finds them.

    folder: only the cache writes into it; it is made with the first file.
    what: what the values are, in the plural, for messages in the log.
    write, read: turn a value into bytes, and bytes into the value again.
    """

    folder: Path
    what: str
    write: Callable[[Value], bytes]
    read: Callable[[bytes], Value]


class Cache(Generic[Value]):
    """The most recently used values by key, whose sizes add up to at most `budget` bytes.

    A value that is larger than the budget is not kept.

    files: how values are also kept on the disk, within the same budget again; each key is then the
    name of a file. None: values are kept in memory only. Threads may share a cache, and processes
    may share its folder.

    A value may depend on something that changes and is not part of the key. Pass that as `of`: the
    value is found only while `of` equals what it was stored with. Files do not record `of`.

    hits, misses: how many requested values were found, and how many were not.
    """

    def __init__(self, budget: int, files: CacheFiles[Value] | None = None) -> None:
        self.budget, self.hits, self.misses = budget, 0, 0
        self._files, self._used = files, 0
        self._known: OrderedDict[Hashable, tuple[Value, object, int]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """Bytes in memory now, at most `budget`."""
        return self._used

    def __contains__(self, key: Hashable) -> bool:
        return key in self._known

    def get(self, key: Hashable, of: object = None) -> Value | None:
        """Return a value and mark it as the most recently used; None if it is not in the cache."""
        found = self._in_memory(key, of)
        if found is None and self._files is not None:
            found = self._from_disk(str(key), self._files)
            if found is not None:
                self._keep(key, found, of)
        if found is None:
            self.misses += 1
        else:
            self.hits += 1
        return found

    def get_or_make(self, key: Hashable, make: Callable[[], Value], of: object = None) -> Value:
        """Return a value; if it is not in the cache, make it and keep it."""
        value = self.get(key, of)
        if value is None:
            value = make()
            self.put(key, value, of)
        return value

    def put(self, key: Hashable, value: Value, of: object = None) -> None:
        """Keep a value, which must not be None; the least recently used ones are dropped for it.

        If the disk refuses the file, that is logged, and the next process computes the value again.
        """
        if self._keep(key, value, of) and self._files is not None:
            self._to_disk(str(key), value, self._files)

    def drop(self, keys: Iterable[Hashable]) -> None:
        """Remove these keys from memory; keys that are not there are ignored."""
        with self._lock:
            for key in keys:
                self._forget(key)

    def keep_only(self, keys: Collection[Hashable]) -> None:
        """Remove all keys but these from memory."""
        self.drop([key for key in list(self._known) if key not in keys])

    # --- in memory --------------------------------------------------------------------------------

    def _in_memory(self, key: Hashable, of: object) -> Value | None:
        with self._lock:
            if key not in self._known:
                return None
            value, kept_with, _ = self._known[key]
            if kept_with != of:
                return None
            self._known.move_to_end(key)
            return value

    def _keep(self, key: Hashable, value: Value, of: object) -> bool:
        """Keep a value in memory; return False if it is larger than the whole budget."""
        size = size_of(value)
        if size > self.budget:
            return False
        with self._lock:
            self._forget(key)
            self._known[key] = value, of, size
            self._used += size
            while self._used > self.budget:
                self._forget(next(iter(self._known)))
        return True

    def _forget(self, key: Hashable) -> None:
        """Remove a key, which may be absent. The caller holds the lock."""
        if key in self._known:
            self._used -= self._known.pop(key)[2]

    # --- on the disk ------------------------------------------------------------------------------

    def _from_disk(self, name: str, files: CacheFiles[Value]) -> Value | None:
        path = files.folder / name
        try:
            content = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            log.warning("%s in %s cannot be read (%s)", files.what, path, error.strerror)
            return None
        checksum, blob = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
        if checksum != _checksum(name, blob):
            log.warning("%s in %s are damaged; computing them again", files.what, path)
            return None
        with suppress(OSError):
            os.utime(path)  # `_make_room` removes the least recently used files
        return files.read(blob)

    def _to_disk(self, name: str, value: Value, files: CacheFiles[Value]) -> None:
        blob = files.write(value)
        try:
            write_atomic(files.folder / name, _checksum(name, blob) + blob, durable=False)
            self._make_room(files.folder)
        except (StoreError, OSError) as error:
            log.warning(
                "%s not kept in %s (%s); computing them again next time",
                files.what, files.folder, error,
            )  # fmt: skip

    def _make_room(self, folder: Path) -> None:
        """Remove the least recently used files until the others fit into the budget.

        Unfinished files that a killed process left behind are removed too.
        """
        found = []
        for path in folder.iterdir():
            with suppress(FileNotFoundError):  # another process has removed or renamed it
                state = path.stat()
                found.append((state.st_mtime_ns, state.st_size, path))
        used = 0
        for _, size, path in sorted(found, reverse=True):
            if path.suffix == TEMPORARY:
                if is_stale(path):
                    path.unlink(missing_ok=True)
                continue
            used += size
            if used > self.budget:
                path.unlink(missing_ok=True)


def size_of(value: object) -> int:
    """Return roughly how many bytes a value takes.

    That is `nbytes` of whatever has it, such as a tensor, and the sum over the items of a mapping
    or a sequence.
    """
    own = getattr(value, "nbytes", None)
    if own is not None:
        return int(own)
    if isinstance(value, bytes | str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(size_of, value.values()))
    if isinstance(value, Sequence):
        return sum(map(size_of, value))
    return _ASSUMED_BYTES


def _checksum(name: str, blob: bytes) -> bytes:
    """Return a checksum of a file's name and content: no file passes under another file's name."""
    return hashlib.sha256(name.encode() + b"\0" + blob).digest()
