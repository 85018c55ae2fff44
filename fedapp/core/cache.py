"""The one cache: values that can be made again, kept by key within a number of bytes.

A cache saves time and nothing else. What is not in it, or is damaged on the disk, is made again and
has the same numbers.
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
"""Of the SHA-256 with which every file begins."""
_ASSUMED_BYTES = 1024
"""Bytes that a value counts for where nobody says how large it is."""


@dataclass(frozen=True)
class CacheFiles(Generic[Value]):
    """How a cache keeps its values on the disk too, where the next process finds them.

    folder: made with the first file; the cache alone writes there. what: the values are, for the
    log, in the plural. write, read: a value as bytes and back.
    """

    folder: Path
    what: str
    write: Callable[[Value], bytes]
    read: Callable[[bytes], Value]


class Cache(Generic[Value]):
    """Values by key: those used last, whose sizes together are at most `budget` bytes.

    A value larger than that is not kept. files: how values are kept on the disk too, in as many
    bytes again; keys are then the names of files. None: in memory only. Threads may share a cache,
    and processes its folder.

    A value may depend on something beside its key, which changes: `of`. It is known only while that
    is equal to what it was kept with. Files do not know it.

    hits, misses: how often a value that was asked for was known, and how often it was not.
    """

    def __init__(self, budget: int, files: CacheFiles[Value] | None = None) -> None:
        self.budget, self.hits, self.misses = budget, 0, 0
        self._files, self._used = files, 0
        self._known: OrderedDict[Hashable, tuple[Value, object, int]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """Bytes that are kept in memory now, at most `budget`."""
        return self._used

    def __contains__(self, key: Hashable) -> bool:
        return key in self._known

    def get(self, key: Hashable, of: object = None) -> Value | None:
        """Return a value, the last used from now on; None where it is not known."""
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
        """Return a value; it is made and kept where it is not known."""
        value = self.get(key, of)
        if value is None:
            value = make()
            self.put(key, value, of)
        return value

    def put(self, key: Hashable, value: Value, of: object = None) -> None:
        """Keep a value, which is not None, in place of an earlier one; those not used long go.

        A disk that refuses costs a line in the log, and later the time to make the value again.
        """
        if self._keep(key, value, of) and self._files is not None:
            self._to_disk(str(key), value, self._files)

    def drop(self, keys: Iterable[Hashable]) -> None:
        """Keep none of these in memory any longer; those that are not known are passed over."""
        with self._lock:
            for key in keys:
                self._forget(key)

    def keep_only(self, keys: Collection[Hashable]) -> None:
        """Drop all but these."""
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
        """Keep a value in memory; return whether there can be room for it."""
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
        """Drop a value that may not be there. The lock is held."""
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
        said, blob = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
        if said != _checksum(name, blob):
            log.warning("%s in %s are damaged; computing them again", files.what, path)
            return None
        with suppress(OSError):
            os.utime(path)  # used last
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
        """Remove the files that were not used for longest, until the others are in the budget.

        And what a process that was killed left half written.
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
    """Return about how many bytes a value takes.

    A tensor, and whatever else has `nbytes`, says so itself; of a mapping or a sequence it is what
    is in it.
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
    """Return what shows that a file of this name is whole and none of another name."""
    return hashlib.sha256(name.encode() + b"\0" + blob).digest()
