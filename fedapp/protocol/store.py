"""Content-addressed storage of models: a file is named by the SHA-256 of its bytes."""

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
"""Folder for files of removed contents, which new contents overwrite."""
MAX_VERIFIED = 20_000
"""Files that are remembered to be intact, the most recent ones; they take 9 MB of memory. Other
files are read and compared once more."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_FOLDER = re.compile(r"[0-9a-f]{2}")

_State = tuple[int, int, int, int]
"""Inode, size, modification and change time of a file: one of them changes on every write."""


class ModelStore:
    """Contents as files `<root>/<digest[:2]>/<digest>.safetensors`; recent ones also in memory.

    root: the folder, made with the first content. memory_bytes: the most that is kept in memory; a
    larger content is read from the disk each time.

    Threads may share a store, and processes may share its folder: contents never change, files
    appear completely or not at all, and a content that exists is not written again. Only the file
    of a removed content may be overwritten while somebody reads it (`keep_only`): `get` then
    reports the content as absent.
    """

    def __init__(self, root: Path, memory_bytes: int = 256 * 2**20) -> None:
        self.root = root
        self._folder = str(root)
        self._memory = Cache[bytes](memory_bytes)
        self._verified: dict[str, _State] = {}
        """State of the files whose bytes this process has compared with their name, or written."""
        self._spare: list[str] = []
        """Files that may be overwritten, if they still exist."""
        self._lock = threading.Lock()

    @property
    def memory_used(self) -> int:
        """Bytes of content in memory now, at most `memory_bytes`."""
        return self._memory.used

    def put(self, blob: bytes, *, durable: bool = False, named: str = "") -> str:
        """Keep a content and return its digest; if it exists already, it is not written again.

        named: the probable digest, if the same bytes object was put before.
        durable: the content survives a power cut once this returns. That waits for the disk, so
        ask for it only where nobody could send the content again.

        Raises StoreError if the disk refuses; earlier contents are kept and no partial file stays.
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
        """Make those of these contents that are here survive a power cut (fsync).

        Raises StoreError if the disk refuses.
        """
        paths = (self._path(digest) for digest in sorted(digests))
        make_durable([path for path in paths if _size(path) is not None])

    def get(self, digest: str) -> bytes:
        """Return a content; if it is read from the disk, it is compared with its digest.

        Raises StoreError if it is absent or damaged. A damaged file is removed, so that `has`
        returns False from then on and the content can be put again.
        """
        if (known := self._memory.get(digest)) is not None:
            return known
        blob = self._read(digest)
        self._memory.put(digest, blob)
        return blob

    def verify(self, digest: str) -> bool:
        """Whether this content exists and its file is intact.

        The file is read and compared with its digest, as `get` does, unless the same file was
        compared before. It counts as the same while its inode, size and times are unchanged: a
        large model is read and hashed once and not for every task that names it. Raises StoreError
        if the file is damaged, as `get` does.
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
        """Whether there is a file of this content, without reading it."""
        return _size(self._path(digest)) is not None

    def size(self, digest: str) -> int:
        """Return the size of a content in bytes. Raises StoreError if it is absent."""
        found = _size(self._path(digest))
        if found is None:
            raise self._absent(digest)
        return found

    def digests(self) -> set[str]:
        """Return the digests of all contents."""
        names = (name.removesuffix(ENDING) for _, name in self._files() if name.endswith(ENDING))
        return {name for name in names if _DIGEST.fullmatch(name)}

    def keep_only(self, digests: Collection[str], *, reuse: bool = False) -> list[str]:
        """Remove all other contents, and unfinished files that killed processes left behind.

        reuse: about as many new contents will be put soon. The files of the removed contents are
        then set aside, and new contents overwrite them; those that are still set aside at the next
        call are removed then. Returns the digests of the removed contents.
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
        """Remove the spare files, and their folder too unless it is used `again`."""
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
        except OSError:  # then the caller removes it
            return False
        return True

    def _spares(self) -> Iterator[str]:
        """Yield files to overwrite; another process may take one of them first."""
        folder = f"{self._folder}/{SPARE_FOLDER}"
        with self._lock:
            self._spare = self._spare or [f"{folder}/{name}" for name in _names(folder)]
        with suppress(IndexError):  # threads share them
            while True:
                yield self._spare.pop()

    def _digest_of(self, blob: bytes, named: str) -> str:
        """Return the digest of a content, without hashing if memory holds this very bytes object.

        On one machine the server and the sites share a store: what a site has put, the server puts
        next.
        """
        return named if self._memory.get(named) is blob else hashlib.sha256(blob).hexdigest()

    def _path(self, digest: str) -> str:
        """Return a content's file. Raises StoreError unless this is a digest: it may be foreign."""
        if not _DIGEST.fullmatch(digest):
            raise StoreError(f"{digest[:80]!r} names no content: must be 64 hex digits of SHA-256")
        return f"{self._folder}/{digest[:2]}/{digest}{ENDING}"

    def _files(self) -> Iterator[tuple[str, str]]:
        """Yield the folder and the name of every file two levels deep.

        Other processes may add and remove files meanwhile. Only names are read, since the server
        does this after every round.
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
            if _state(str(path)) != before:  # meanwhile removed and overwritten
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
        """Whether the file holds these bytes: another process may have written or damaged it."""
        path = self._path(digest)
        state = _state(path)
        if state is None or state[1] != len(blob):  # absent or truncated
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
                self._verified.pop(digest, None)  # so that the most recent one stands last
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
    """Remove a file that nobody needs; a failure is logged, since the file only takes up space."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s: cannot be removed (%s)", path, error.strerror)
