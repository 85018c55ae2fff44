"""Models by content: a file is named by the SHA-256 of its bytes; the name proves the content."""

import hashlib
import logging
import os
import re
import threading
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from fedapp.core.cache import Cache
from fedapp.core.disk import TEMPORARY, is_stale, make_durable, write_atomic
from fedapp.core.errors import StoreError

log = logging.getLogger(__name__)

ENDING = ".safetensors"
SPARE_FOLDER = "spare"
"""Folder of files that held contents, for new ones to be written over."""
MAX_VERIFIED = 20_000
"""Files that are known to be whole, the last ones; 9 MB. Others are read once more."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_FOLDER = re.compile(r"[0-9a-f]{2}")

_State = tuple[int, int, int, int]
"""Inode, size and times of a file: what writing to it changes, on purpose or by accident."""


class ModelStore:
    """Contents as files `<root>/<digest[:2]>/<digest>.safetensors`, the last used also in memory.

    root: made with the first content. memory_bytes: the most that is kept in memory; a larger
    content is read from disk each time.

    Threads may share a store and processes a folder: contents never change, they come whole, and
    writing one that is there already is no work. Only the file of one that was removed may be
    written over while somebody reads it (`keep_only`): `get` then says that it is absent.
    """

    def __init__(self, root: Path, memory_bytes: int = 256 * 2**20) -> None:
        self.root = root
        self._folder = str(root)
        self._memory = Cache[bytes](memory_bytes)
        self._verified: dict[str, _State] = {}
        """Files whose bytes this process has compared with their name, or written itself."""
        self._spare: list[str] = []
        """Files that may still be there to be written over."""
        self._lock = threading.Lock()

    @property
    def memory_used(self) -> int:
        """Bytes of content in memory now, at most `memory_bytes`."""
        return self._memory.used

    def put(self, blob: bytes, *, durable: bool = False, named: str = "") -> str:
        """Keep a content and return its digest; one that is there already is not written again.

        named: what the digest is likely to be, if the very bytes were put before.
        durable: the content outlives a power cut once this returns. That costs a wait for the disk:
        ask for it only where nobody could send the content again.

        Raises StoreError where the disk refuses; nothing kept earlier is lost, no part file stays.
        """
        digest = self._digest_of(blob, named)
        path = self._path(digest)
        if not self._is_there(digest, blob):
            write_atomic(path, blob, durable=durable, spare=self._spares())
            self._note_verified(digest, _state(path))
        elif durable:
            make_durable([path])
        self._memory.put(digest, blob)
        return digest

    def sync(self, digests: Collection[str]) -> None:
        """Bring those of these contents that are here to the disk: they outlive a power cut then.

        Raises StoreError where the disk refuses.
        """
        paths = (self._path(digest) for digest in sorted(digests))
        make_durable([path for path in paths if _size(path) is not None])

    def get(self, digest: str) -> bytes:
        """Return a content; what comes from disk is compared with its name.

        Raises StoreError where it is absent or damaged. A damaged file is removed, so that `has`
        says False from then on and the content can be put again.
        """
        if (known := self._memory.get(digest)) is not None:
            return known
        blob = self._read(digest)
        self._memory.put(digest, blob)
        return blob

    def verify(self, digest: str) -> bool:
        """Whether there is a file of this content, having compared it with its name.

        As `get` does, unless the very file was compared before. It is the same while its inode,
        size and times of change are: a wide model is read and hashed once, not for every task that
        names it. Raises StoreError where it is damaged, as `get` does.
        """
        before = _state(self._path(digest))
        if before is None:
            return False
        with self._lock:
            if digest in self._memory or self._verified.get(digest) == before:
                return True
        blob = self._read(digest)
        self._memory.put(digest, blob)
        self._note_verified(digest, before)
        return True

    def has(self, digest: str) -> bool:
        """Whether there is a file of this content (only `get` reads it)."""
        return _size(self._path(digest)) is not None

    def size(self, digest: str) -> int:
        """Return the bytes of a content. Raises StoreError where it is absent."""
        found = _size(self._path(digest))
        if found is None:
            raise self._absent(digest)
        return found

    def digests(self) -> set[str]:
        """Return the digests of all files."""
        names = (name.removesuffix(ENDING) for _, name in self._files() if name.endswith(ENDING))
        return {name for name in names if _DIGEST.fullmatch(name)}

    def keep_only(self, digests: Collection[str], *, reuse: bool = False) -> list[str]:
        """Remove every other content, and part files that a killed process left behind.

        reuse: about as many new contents come soon. The files of those that go are set aside, and
        the new ones are written over them; a file still set aside at the next call goes then.
        Returns the digests of what was removed.
        """
        keep, removed = set(digests), []
        self._clear_spare(again=reuse)
        self._memory.keep_only(keep)
        with self._lock:
            for digest in self._verified.keys() - keep:
                del self._verified[digest]
        kept = {f"{digest}{ENDING}" for digest in keep}
        for folder, name in self._files():
            if name in kept:
                continue
            path = Path(folder, name)
            if path.suffix == ENDING and _DIGEST.fullmatch(path.stem):
                removed.append(path.stem)
                if not (reuse and self._set_aside(path)):
                    _remove(path)
            elif path.suffix == TEMPORARY and is_stale(path):
                _remove(path)
        return removed

    def _clear_spare(self, *, again: bool) -> None:
        """Remove the spare files, and their folder unless it is used `again`."""
        folder = self.root / SPARE_FOLDER
        for name in _names(folder):
            _remove(folder / name)
        with suppress(OSError):
            if again:
                folder.mkdir()
            else:
                folder.rmdir()

    def _set_aside(self, path: Path) -> bool:
        try:
            path.replace(self.root / SPARE_FOLDER / path.name)
        except OSError:  # it only takes room: it can go
            return False
        return True

    def _spares(self) -> Iterator[str]:
        """Yield files to write over; another process may take one first."""
        folder = f"{self._folder}/{SPARE_FOLDER}"
        with self._lock:
            self._spare = self._spare or [f"{folder}/{name}" for name in _names(folder)]
        with suppress(IndexError):  # threads share them
            while True:
                yield self._spare.pop()

    def _digest_of(self, blob: bytes, named: str) -> str:
        """Return the digest; of the very bytes that are kept under the name it is known.

        On one machine server and sites share a store: what a site has put, the server puts next.
        """
        return named if self._memory.get(named) is blob else hashlib.sha256(blob).hexdigest()

    def _path(self, digest: str) -> str:
        """Return a content's file; refuse anything but a digest, which may come from elsewhere."""
        if not _DIGEST.fullmatch(digest):
            raise StoreError(f"{digest[:80]!r} names no content: must be 64 hex digits of SHA-256")
        return f"{self._folder}/{digest[:2]}/{digest}{ENDING}"

    def _files(self) -> Iterator[tuple[str, str]]:
        """Yield folder and name of every file two levels deep.

        Other processes may add and remove some meanwhile. By names alone: the server looks through
        all after every round.
        """
        for folder in _names(self.root):
            if _FOLDER.fullmatch(folder):
                path = os.path.join(self.root, folder)
                yield from ((path, name) for name in _names(path))

    def _read(self, digest: str) -> bytes:
        path = Path(self._path(digest))
        before = _state(str(path))
        try:
            blob = path.read_bytes()
        except FileNotFoundError:
            raise self._absent(digest) from None
        except OSError as error:
            raise StoreError(
                f"{path}: cannot be read ({error.strerror}): make it readable, or remove it so "
                "that it is fetched again"
            ) from error
        if hashlib.sha256(blob).hexdigest() != digest:
            if _state(str(path)) != before:  # removed meanwhile, and written over
                raise self._absent(digest)
            _remove(path)
            message = (
                f"{path}: damaged, its {len(blob)} bytes are not the content it is named after, "
                "and removed: fetch it again from a holder"
            )
            log.warning("%s", message)
            raise StoreError(message)
        return blob

    def _absent(self, digest: str) -> StoreError:
        return StoreError(f"{self._path(digest)}: no such model here: fetch it from a holder")

    def _is_there(self, digest: str, blob: bytes) -> bool:
        """Whether the file holds these bytes; another process may have written or damaged it."""
        path = self._path(digest)
        state = _state(path)
        if state is None or state[1] != len(blob):  # absent, or cut
            return False
        with self._lock:
            if self._verified.get(digest) == state:
                return True
        try:
            same = Path(path).read_bytes() == blob
        except OSError:
            return False
        if same:
            self._note_verified(digest, state)
        return same

    def _note_verified(self, digest: str, state: "_State | None") -> None:
        if state is not None:
            with self._lock:
                self._verified.pop(digest, None)  # the last one comes last
                self._verified[digest] = state
                if len(self._verified) > MAX_VERIFIED:
                    del self._verified[next(iter(self._verified))]


def _names(folder: str | Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _state(path: str) -> _State | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def _remove(path: Path) -> None:
    """Remove a file that nobody needs; where that fails it only takes room."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s: cannot be removed (%s)", path, error.strerror)
