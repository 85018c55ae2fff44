"""The head of a file: which version of it is the newest, kept outside of the site folder.

A record, a journal or a list can be whole in itself and yet be an older copy of itself: its end was
cut off, or a backup was put back. Nothing inside the file can show this. So the site keeps a *head*
of each such file, in a place of its own outside the site folder:

    $FEDAPP_HEADS, else $XDG_STATE_HOME/fedapp/heads, else ~/.local/state/fedapp/heads
        SITE/key          32 random bytes of this site; SITE is a hash of the site folder's path
        SITE/NAME.head    the head of one file; NAME is a hash of its name

A head has a counter that only grows, the SHA-256 of the file, and that of the file as it was before
the change that is under way. It is authenticated by an HMAC with the key. A change has three steps:

    1. announce   the head gets the digests before and after the change, and is on the disk
    2. change     the caller writes the file
    3. settle     the head forgets the digest before the change

If the program is killed between 1 and 3, the file may be as before or as after the change, and both
are accepted. After 3 only the new file is accepted. So an older copy is distinguished from a crash.
Step 3 does not wait for the disk: after a power cut, the last change of a file (and only that one)
may still count as unfinished.

A head cannot notice two things. The site folder and the heads were both put back to the same
moment, as by a snapshot of the whole machine. Or all heads and all files are gone, which looks like
a first start. Keep FEDAPP_HEADS on storage that is not restored together with the site folder.
"""

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from fedapp.core.disk import check_owned, make_folder, open_own_file, write_atomic, write_error
from fedapp.core.errors import ConfigError, FedAppError, StoreError

HEADS_VARIABLE = "FEDAPP_HEADS"
"""Environment variable that names the folder of the heads of all sites of this machine."""
ABSENT = ""
"""The digest of a file that is not there."""
_SLOT = 512
"""Bytes of one version of a head. A file has two versions, written in turn: one is always whole."""
_KEY_BYTES = 32
_LOCK_S = 10.0


class RecordError(FedAppError):
    """A file in which a site records what it did is not as the site left it."""


@dataclass(frozen=True)
class Mark:
    """The content of a head.

    count: how often the head was written. before, now: SHA-256 in hex, or ABSENT, of the file
    before and after the newest change. They are equal if that change is finished.
    """

    count: int
    before: str
    now: str


@dataclass(frozen=True)
class Head:
    """The head of one file of a site.

    folder: the site folder. name: names the file among all files of this site, and never changes.
    file: the file, for messages only: `Head` neither reads nor writes it. remedy: what a person can
    do if the file is not the one that the head knows.

    Whoever uses a head computes the file's digest, changes the file and settles the head while it
    holds `locked`; otherwise another process may change the file in between. Typical use:

        head = Head(site_folder, f"journal {identity}", path, "begin another run")
        with head.locked():
            head.check(old := digest(path))
            with head.advance(old, digest_of(new)):
                write_atomic(path, new, durable=True, mode=0o600)
    """

    folder: Path
    name: str
    file: Path
    remedy: str

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock this head against all other processes and threads.

        One thread cannot lock it twice. Raises StoreError if another program holds the lock for
        more than 10 seconds, or if the disk refuses.
        """
        try:
            place = self._place()
            make_folder(place, mode=0o700)
            check_owned(place)
            lock = FileLock(place / f"{self._stem}.lock", mode=0o600)
            lock.acquire(timeout=_LOCK_S)
        except Timeout as error:
            raise StoreError(f"{self.file}: another program holds it: end that program") from error
        except OSError as error:
            raise write_error(self._path, error, setting=HEADS_VARIABLE) from error
        try:
            yield
        finally:
            lock.release()

    def check(self, digest: str) -> None:
        """Check that a file with this digest is the one that the site left.

        digest: SHA-256 in hex; ABSENT: there is no file. Raises RecordError if the file is an older
        copy, is cut, changed or gone, or has no head on this machine; StoreError if the head cannot
        be read.
        """
        mark = self.mark()
        if mark is None and digest == ABSENT:
            return
        if mark is None:
            raise RecordError(
                f"{self.file}: this machine has no head of it ({self._path}): the file comes from "
                f"elsewhere, or the heads are lost: {self.remedy}"
            )
        if digest not in (mark.before, mark.now):
            how = (
                "is gone"
                if digest == ABSENT
                else "is not as this site left it (older, cut or changed)"
            )
            raise RecordError(f"{self.file}: {how}: put its newest copy back, or {self.remedy}")

    @contextmanager
    def advance(self, before: str, now: str, *, accept: bool = False) -> Iterator[None]:
        """Announce that a file changes, let the caller change it, and settle the head.

        before, now: the file's digests before and after the change. `before` must be the file that
        the site left. accept: skip that check, since a person has decided to accept the file. When
        the body begins, the announcement is on the disk. If the body raises, either of the two
        files is accepted until the next change. Raises as `check` does, and StoreError if the disk
        refuses.
        """
        count = 0
        with suppress(RecordError) if accept else nullcontext():
            count = mark.count if (mark := self.mark()) else 0
            self.check(before)
        self._write(Mark(count + 1, before, now), durable=True)
        yield
        self._write(Mark(count + 2, now, now), durable=False)

    def mark(self) -> Mark | None:
        """Return the content of the head; None if there is no head.

        Raises RecordError if it is damaged or was written with another site's key, StoreError if it
        cannot be read.
        """
        try:
            with open_own_file(self._path, os.O_RDONLY) as file:
                content = file.read(2 * _SLOT)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(
                f"{self._path}: {error.strerror}: make it readable for the node"
            ) from error
        key = self._key()
        marks = (self._parsed(content[at : at + _SLOT], key) for at in (0, _SLOT))
        whole = [mark for mark in marks if mark is not None]
        if not whole:
            raise RecordError(
                f"{self._path}: is damaged or of another site, so that nobody can say whether "
                f"{self.file} is whole: put the newest copy back, or {self.remedy}"
            )
        return max(whole, key=lambda mark: mark.count)

    def _write(self, mark: Mark, durable: bool) -> None:
        slot = self._slot(mark)
        try:
            with open_own_file(self._path, os.O_RDWR) as file:
                os.pwrite(file.fileno(), slot, _SLOT * (mark.count % 2))
                if durable:
                    os.fdatasync(file.fileno())
        except FileNotFoundError:
            blank = b" " * _SLOT
            both = blank + slot if mark.count % 2 else slot + blank
            write_atomic(self._path, both, durable=True, mode=0o600)
        except OSError as error:
            raise write_error(self._path, error, setting=HEADS_VARIABLE) from error

    def _slot(self, mark: Mark) -> bytes:
        said = json.dumps(asdict(mark))
        return f"{self._mac(said, self._key())} {said}".encode().ljust(_SLOT)

    def _parsed(self, slot: bytes, key: bytes) -> Mark | None:
        """Return the content of one slot; None if it is blank, half written, or of another site."""
        mac, _, said = slot.decode(errors="replace").rstrip().partition(" ")
        if not hmac.compare_digest(mac.encode(), self._mac(said, key).encode()):
            return None
        return Mark(**json.loads(said))

    def _mac(self, said: str, key: bytes) -> str:
        return hmac.digest(key, f"{self.name}\n{said}".encode(), "sha256").hex()

    def _key(self) -> bytes:
        """Return the site's key, which is made together with its first head."""
        path = self._place() / "key"
        try:
            with open_own_file(path, os.O_RDONLY) as file:
                key = file.read()
        except FileNotFoundError:
            with FileLock(path.with_name("key.lock"), mode=0o600):
                if path.exists():
                    return self._key()
                key = secrets.token_bytes(_KEY_BYTES)
                write_atomic(path, key, durable=True, mode=0o600)
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}: make it readable for the node") from error
        if len(key) != _KEY_BYTES:
            raise RecordError(
                f"{path}: {len(key)} bytes, must be {_KEY_BYTES}: put its copy back, or "
                f"remove it, and {self.remedy}"
            )
        return key

    @property
    def _path(self) -> Path:
        return self._place() / f"{self._stem}.head"

    @property
    def _stem(self) -> str:
        return hashlib.sha256(self.name.encode()).hexdigest()[:32]

    def _place(self) -> Path:
        return place_of(self.folder)


def place_of(folder: Path) -> Path:
    """Return the folder of a site's heads. Raises ConfigError if it lies in the site folder."""
    own = folder.resolve()
    root = heads_root().resolve()
    if root.is_relative_to(own):
        raise ConfigError(
            f"{root}: the heads must not lie in the site folder {own}, whose files they guard: "
            f"set {HEADS_VARIABLE} to a folder elsewhere"
        )
    return root / hashlib.sha256(os.fsencode(own)).hexdigest()[:32]


def heads_root() -> Path:
    """Return the folder in which all sites of this machine have their heads."""
    if named := os.environ.get(HEADS_VARIABLE):
        if not Path(named).is_absolute():  # the programs of a site may run in different folders
            raise ConfigError(f"{HEADS_VARIABLE} = {named!r}: must begin with a slash")
        return Path(named)
    try:
        return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / (
            "fedapp/heads"
        )
    except RuntimeError as error:
        raise ConfigError(
            f"this user has no home folder: set {HEADS_VARIABLE} to a folder"
        ) from error


def digest_of_file(path: Path) -> str:
    """Return the SHA-256 of a file in hex; ABSENT if there is no file.

    Raises RecordError for a link and for a file of another user, StoreError if the file cannot be
    read.
    """
    try:
        with open_own_file(path, os.O_RDONLY) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return ABSENT
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}: make it readable for the node") from error
