"""Files that are written completely or not at all, and the error when the disk refuses a write."""

import errno
import os
import secrets
import shutil
import stat
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from fedapp.core.errors import ConfigError, StoreError
from fedapp.core.formatting import size

TEMPORARY = ".tmp"
"""Suffix of a file that is still being written."""
STALE_S = 600.0
"""Age in seconds above which an unfinished file counts as the leftover of a killed process."""

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def write_atomic(
    path: Path | str, data: bytes, *, durable: bool, mode: int = 0o666, spare: Iterable[str] = ()
) -> None:
    """Write a file completely or not at all; arguments and errors are those of `open_atomic`."""
    with open_atomic(path, durable=durable, mode=mode, needed=len(data), spare=spare) as file:
        file.write(data)


@contextmanager
def open_atomic(
    path: Path | str,
    *,
    durable: bool,
    mode: int = 0o666,
    needed: int = 0,
    spare: Iterable[str] = (),
) -> Iterator[BinaryIO]:
    """Open a temporary file for writing that replaces `path` when the block ends without an error.

    Readers and other writers of the same path see the old content or the new one, never a part of
    it. The folder is made if it is absent.

    durable: the new content reaches the disk (fsync) before it replaces the old one, so that not
    even a power cut loses both. That waits for the disk.
    mode: access rights of the file from its first byte on, minus the process's umask.
    needed: size of the content in bytes, for the error message; 0: not known yet.
    spare: files on the same disk that nobody needs any longer. The first of them that exists is
    overwritten and renamed, and keeps its access rights. That costs a fraction of a new file, for
    which the file system must find space.

    Raises StoreError, which names the file, the free space and the remedy. The old content is kept.
    """
    folder, name = os.path.split(path)  # making a `Path` would take as long as opening a file
    part = os.path.join(folder, f".{name}.{secrets.token_hex(4)}{TEMPORARY}")
    try:
        with _open_spare(spare, part) or _open_new(part, mode) as file:
            yield file
            file.flush()
            # Only a spare file can be longer. Truncating a new one would make XFS sync to the disk.
            if os.fstat(file.fileno()).st_size > file.tell():
                file.truncate()
            if durable:
                os.fsync(file.fileno())
        os.replace(part, path)
        if durable:
            _sync(folder or ".")
    except OSError as error:
        _remove_quietly(part)
        raise write_error(Path(path), error, needed) from error
    except BaseException:  # an interrupt must not leave a partial file either
        _remove_quietly(part)
        raise


def _open_spare(spare: Iterable[str], part: str) -> BinaryIO | None:
    """Rename one of these files to `part` and open it for writing; None if none is available.

    Links and files with a second hard link are skipped: overwriting one would change somebody's
    copy of it (`cp -al`) as well.
    """
    for path in spare:
        if not os.path.isdir(folder := os.path.dirname(part)):
            make_folder(Path(folder))
        try:
            # A new modification time: nobody may take it for the leftover of a killed process.
            os.utime(path, follow_symlinks=False)
            os.rename(path, part)
            descriptor = os.open(part, os.O_RDWR | os.O_NOFOLLOW)
        except FileNotFoundError:  # another process took it
            continue
        except OSError:  # such as another user's file: the next ones would fail in the same way
            break
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
            return os.fdopen(descriptor, "r+b")
        os.close(descriptor)
        _remove_quietly(part)
    _remove_quietly(part)
    return None


def _open_new(part: str, mode: int) -> BinaryIO:
    """Open a new file for writing; make its folder if that is absent."""

    def opened() -> BinaryIO:
        return open(part, "xb", opener=lambda name, flags: os.open(name, flags, mode))

    try:
        return opened()
    except FileNotFoundError:
        make_folder(Path(part).parent)
        return opened()


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Make a folder and its parents; they survive a power cut.

    mode: access rights of the folder itself, minus the process's umask, if it is new.
    """
    absent = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True, mode=mode)
    for path in absent:
        with suppress(PermissionError):  # one may write into a folder and yet not open it
            _sync(path.parent)


def append_durable(path: Path, data: bytes) -> None:
    """Add to a file, which must be no link, and wait until it is on the disk.

    Raises StoreError where the disk refuses; the file then is as before or, on a disk that takes
    nothing at all any more, may end in the middle of `data`.
    """
    before: int | None = None
    try:
        with open(path, "ab", opener=_not_by_a_link) as file:
            before = file.tell()
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if not before:  # it may be new
            _sync(path.parent)
    except OSError as error:
        if before is not None:
            with suppress(OSError):
                os.truncate(path, before)
        raise write_error(path, error, len(data)) from error


def _not_by_a_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def truncate_durable(path: Path, size: int) -> None:
    """Truncate a file to `size` bytes if it is longer, and wait for the disk. Raises StoreError."""
    try:
        if path.stat().st_size > size:
            os.truncate(path, size)
            _sync(path)
    except OSError as error:
        raise write_error(path, error) from error


def remove_stale(folder: Path) -> None:
    """Remove unfinished files that killed processes left in a folder; ignore errors."""
    for part in folder.glob(f".*{TEMPORARY}"):
        if is_stale(part):
            _remove_quietly(part)


def is_stale(part: Path) -> bool:
    """Whether nobody has written to an unfinished file for `STALE_S` seconds."""
    try:
        return time.time() - part.stat().st_mtime > STALE_S
    except OSError:  # renamed or removed by its writer just now
        return False


def make_durable(paths: Collection[str]) -> None:
    """Wait until written files have reached the disk (fsync). Raises StoreError.

    All files first and then each folder once takes half the time of syncing every file together
    with its folder.
    """
    for path in [*paths, *sorted({os.path.dirname(path) for path in paths})]:
        try:
            _sync(path)
        except OSError as error:
            raise write_error(Path(path), error) from error


def write_error(path: Path, error: OSError, needed: int = 0, setting: str = "") -> StoreError:
    """Return the error that names the file that could not be written, the reason and the remedy.

    needed: bytes that the file would have taken; 0: not known. setting: the setting by which a user
    can choose another folder.
    """
    facts = [error.strerror or str(error), *([f"{size(needed)} needed"] if needed else [])]
    folder = next((p for p in path.parents if p.is_dir()), Path("/"))
    facts.append(f"{size(shutil.disk_usage(folder).free)} free")
    other = f"choose another folder{f' ({setting})' if setting else ''}"
    if error.errno in _DISK_FULL:
        remedy = "free space there; what was written before is kept"
    elif error.errno == errno.EISDIR:
        remedy = "it is a folder; name a file in it"
    elif error.errno in {errno.ENOTDIR, errno.EEXIST}:
        remedy = f"a file is in the way; {other}"
    else:
        remedy = f"make {folder} writable or {other}"
    return StoreError(f"{path}: cannot be written ({', '.join(facts)}): {remedy}")


def check_owned(path: Path) -> None:
    """Raise ConfigError if anybody but this user and root may write the file or its folder.

    Like `open_own_file`, this refuses a link, since its owner decides where it leads. The folder
    itself may be reached through a link. Raises FileNotFoundError if the file does not exist.
    """
    for one, found in ((path, path.lstat()), (path.parent, path.parent.stat())):
        _check_owner(one, found)
        sticky = one != path and found.st_mode & stat.S_ISVTX
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not sticky:
            mode = f"{stat.S_IMODE(found.st_mode):o}"
            raise ConfigError(f"{one}: others may write it (mode {mode}): chmod go-w {one}")


def open_own_file(path: Path, flags: int) -> FileIO:
    """Open a regular file that belongs to this user or to root, unbuffered.

    flags: those of `os.open`; a new file is readable by its owner only. Raises ConfigError if the
    path is a link, not a regular file, or somebody else's; OSError if it cannot be opened.
    """
    try:
        # Without O_NONBLOCK, opening a named pipe in the file's place would block the program.
        number = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            _check_owner(path, path.lstat())
        raise
    try:
        found = os.fstat(number)
        _check_owner(path, found)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"{path}: is no regular file: put the file itself there")
        can = "ab" if flags & os.O_APPEND else "r+b" if flags & os.O_RDWR else "rb"
        return FileIO(number, can)
    except BaseException:
        os.close(number)
        raise


def _check_owner(path: Path, found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise ConfigError(f"{path}: is a link: put the file itself there")
    if found.st_uid not in {0, os.geteuid()}:
        raise ConfigError(
            f"{path}: belongs to user {found.st_uid}: only root or the node's own user may "
            "decide for the site (chown)"
        )


def _sync(path: Path | str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_quietly(part: Path | str) -> None:
    try:
        os.unlink(part)
    except OSError:
        pass  # it is gone, or the error that is being raised already says what is wrong
