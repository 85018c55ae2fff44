"""What a disk that refuses, and a killed process, leave of the files."""

import errno
import os

import pytest

from fedapp.core import disk
from fedapp.core.disk import (
    append_durable,
    remove_stale,
    truncate_durable,
    write_atomic,
    write_error,
)
from fedapp.core.errors import StoreError


def refuse(*_):
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_a_line_that_can_neither_be_written_nor_taken_back_is_said(tmp_path, monkeypatch):
    """A disk that failed is often made read-only: then the file cannot be cut either."""
    path = tmp_path / "lines"
    append_durable(path, b"first\n")
    monkeypatch.setattr(os, "fsync", refuse)
    monkeypatch.setattr(os, "truncate", refuse)
    with pytest.raises(StoreError, match=r"lines: cannot be written \(Read-only file system"):
        append_durable(path, b"second\n")


@pytest.fixture
def synced(monkeypatch):
    """Files and folders that were brought to the disk, in their order."""
    found = []
    monkeypatch.setattr(
        os, "fsync", lambda number: found.append(os.readlink(f"/proc/self/fd/{number}"))
    )
    return found


def test_a_new_file_of_lines_is_in_its_folder_after_a_power_cut(tmp_path, synced):
    path = tmp_path / "lines"
    for _ in range(2):
        append_durable(path, b"line\n")
    assert synced == [str(path), str(tmp_path), str(path)]


def test_a_file_is_cut_to_its_first_bytes_and_never_made_longer(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntwo\n")
    for size, left in ((100, b"one\ntwo\n"), (4, b"one\n"), (0, b"")):
        truncate_durable(path, size)
        assert path.read_bytes() == left
    with pytest.raises(StoreError, match="none: cannot be written"):
        truncate_durable(tmp_path / "none", 0)


def test_what_a_killed_process_left_is_removed_once_nobody_writes_to_it(tmp_path):
    old, fresh, other = (tmp_path / name for name in (".a.tmp", ".b.tmp", "c.tmp"))
    for path in (old, fresh, other):
        path.write_bytes(b"half")
    for path in (old, other):
        os.utime(path, (0, path.stat().st_mtime - disk.STALE_S - 60))
    remove_stale(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".b.tmp", "c.tmp"]


def test_new_folders_are_in_theirs_after_a_power_cut(tmp_path, synced):
    path = tmp_path / "one" / "two" / "file"
    for _ in range(2):
        write_atomic(path, b"content", durable=False)
    assert synced == [str(tmp_path / "one"), str(tmp_path)]


def test_a_folder_that_only_lets_one_write_takes_new_ones(tmp_path, monkeypatch):
    def closed(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(disk, "_sync", closed)
    write_atomic(tmp_path / "one" / "file", b"content", durable=False)
    assert (tmp_path / "one" / "file").read_bytes() == b"content"


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EACCES, "make {} writable or choose another folder"),
        (errno.EEXIST, "a file is in the way; choose another folder"),
        (errno.EISDIR, "it is a folder; name a file in it"),
        (errno.ENOSPC, "free space there; what was written before is kept"),
    ],
)
def test_the_remedy_names_a_setting_only_where_one_says_which_folder_it_is(
    tmp_path, number, remedy
):
    """`fedapp predict --out` names its own file: a run's settings would not help."""
    error = OSError(number, os.strerror(number))
    said = remedy.format(tmp_path)
    assert str(write_error(tmp_path / "a", error)).endswith(f": {said}")
    named = str(write_error(tmp_path / "a", error, setting="runtime.out"))
    assert named.endswith(f": {said} (runtime.out)" if "another" in said else f": {said}")
