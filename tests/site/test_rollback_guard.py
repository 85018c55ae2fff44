"""A site's heads: what an older copy, a crash, a full disk and other programs leave of them."""

import errno
import os
import shutil
from contextlib import nullcontext
from hashlib import sha256

import pytest

from fedapp.core.disk import write_atomic
from fedapp.core.errors import ConfigError, StoreError
from fedapp.site import rollback_guard
from fedapp.site.rollback_guard import Head, RecordError, digest_of_file, place_of


def digest(text):
    return sha256(text.encode()).hexdigest()


@pytest.fixture
def head(tmp_path):
    folder = tmp_path / "site"
    folder.mkdir(mode=0o700)
    return Head(folder, "journal", folder / "journal", "begin another run")


def change(head, text):
    with head.locked(), head.advance(digest_of_file(head.file), digest(text)):
        write_atomic(head.file, text.encode(), durable=True)


def check(head):
    with head.locked():
        head.check(digest_of_file(head.file))


def test_a_file_that_the_site_left_so_passes_and_a_first_start_does(head):
    check(head)
    for text in "abc":
        change(head, text)
        check(head)
    assert (head.mark().count, head.mark().now) == (6, digest("c"))


@pytest.mark.parametrize("put", [
    lambda file: file.write_text("b"),  # the last state but one
    lambda file: file.write_text("a"),
    lambda file: file.write_text(""),
    lambda file: file.write_text("other"),
    lambda file: file.unlink(),
])  # fmt: skip
def test_an_older_cut_changed_or_absent_file_is_found(head, put):
    for text in "abc":
        change(head, text)
    put(head.file)
    with pytest.raises(RecordError, match="begin another run"):
        check(head)
    with pytest.raises(RecordError):
        change(head, "d")
    head.file.write_text("c")
    check(head)


def test_a_crash_between_the_announcement_and_the_file_is_no_rollback(head):
    change(head, "a")
    with pytest.raises(KeyboardInterrupt), head.locked(), head.advance(digest("a"), digest("b")):
        raise KeyboardInterrupt  # killed before the file was written
    check(head)
    head.file.write_text("b")  # or after it was, before the head was settled
    check(head)
    head.file.write_text("c")
    with pytest.raises(RecordError):
        check(head)
    head.file.write_text("a")
    change(head, "d")  # the next change ends the doubt
    head.file.write_text("a")
    with pytest.raises(RecordError):
        check(head)


def test_the_announcement_is_on_the_disk_before_the_file_changes(head, monkeypatch):
    change(head, "a")
    done = []
    monkeypatch.setattr(os, "fdatasync", lambda number: done.append("head"))
    monkeypatch.setattr(os, "fsync", lambda number: done.append("file"))
    change(head, "b")
    assert done == ["head", "file", "file"]  # the file, and its folder


def test_a_slot_that_a_power_cut_left_half_is_the_state_before(head):
    change(head, "a")
    path, before = head._path, head._path.read_bytes()
    change(head, "b")
    after = path.read_bytes()
    for cut in range(0, 512, 7):
        for slot in (0, 512):
            torn = bytearray(before)
            torn[slot : slot + cut] = after[slot : slot + cut]
            path.write_bytes(torn)
            assert head.mark().now in (digest("a"), digest("b"))


def test_a_file_that_no_head_of_this_machine_knows_is_refused(head, monkeypatch):
    change(head, "a")
    shutil.rmtree(place_of(head.folder))
    with pytest.raises(RecordError, match="no head of it"):
        check(head)
    with head.locked(), head.advance(digest("a"), digest("b"), accept=True):
        head.file.write_text("b")
    check(head)
    head.file.write_text("a")
    with pytest.raises(RecordError):
        check(head)


def test_an_older_copy_is_taken_only_by_a_persons_word(head):
    for text in "abc":
        change(head, text)
    head.file.write_text("a")
    with head.locked(), head.advance(digest("a"), digest("a and why"), accept=True):
        head.file.write_text("a and why")
    check(head)
    assert head.mark().count == 8  # it never goes back


def test_a_head_is_of_one_site_one_file_and_one_key(head, tmp_path):
    change(head, "a")
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    for twin in (
        Head(other, head.name, head.file, head.remedy),
        Head(head.folder, "record", head.file, head.remedy),
    ):
        with twin.locked():
            shutil.copy(head._path, twin._path)
        with pytest.raises(RecordError, match="damaged or of another site"):
            check(twin)
    (place_of(head.folder) / "key").unlink()
    with pytest.raises(RecordError, match="damaged or of another site"):
        check(head)


def test_every_single_byte_of_both_slots_counts(head):
    """Whatever byte is changed, the head says the newest state, the one before it, or nothing."""
    change(head, "a")
    change(head, "b")
    whole = head._path.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        head._path.write_bytes(damaged)
        assert head.mark().now == digest("b")  # both slots say so: one is damaged
    head._path.write_bytes(bytes(byte ^ 1 for byte in whole))
    with pytest.raises(RecordError, match="damaged"):
        head.mark()


@pytest.mark.parametrize("failing", ["pwrite", "fdatasync"])
def test_a_disk_that_refuses_the_announcement_leaves_the_file_as_it_was(head, monkeypatch, failing):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    change(head, "a")
    with monkeypatch.context() as patched:
        patched.setattr(rollback_guard.os, failing, full)
        with pytest.raises(StoreError, match="No space left"):
            change(head, "b")
    assert head.file.read_text() == "a"
    check(head)
    change(head, "c")
    check(head)


def test_a_disk_that_refuses_the_file_leaves_the_head_right(head, monkeypatch):
    change(head, "a")
    with pytest.raises(StoreError), head.locked(), head.advance(digest("a"), digest("b")):
        raise StoreError("full")
    check(head)
    change(head, "b")
    check(head)


def test_links_and_files_of_others_are_refused(head, tmp_path, monkeypatch):
    change(head, "a")
    elsewhere = tmp_path / "elsewhere"
    for path in (head.file, head._path, place_of(head.folder) / "key"):
        path.rename(elsewhere)
        path.symlink_to(elsewhere)
        with pytest.raises(ConfigError, match="is a link"):
            check(head)
        path.unlink()
        elsewhere.rename(path)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with (
        pytest.raises(ConfigError, match="belongs to user") if os.getuid() else nullcontext()
    ):  # root's files are everybody's
        check(head)


def test_a_pipe_in_the_files_place_keeps_nobody_waiting(head):
    os.mkfifo(head.file)
    with pytest.raises(ConfigError, match="no regular file"):
        check(head)


def test_heads_that_others_may_write_are_refused(head):
    change(head, "a")
    place_of(head.folder).chmod(0o770)
    with pytest.raises(ConfigError, match="others may write it"):
        check(head)


@pytest.mark.parametrize("named", ["heads", "~/heads", "./heads"])
def test_a_place_that_depends_on_the_current_folder_is_refused(head, monkeypatch, named):
    """Another program of the site would find no heads there, and refuse everything."""
    monkeypatch.setenv(rollback_guard.HEADS_VARIABLE, named)
    with pytest.raises(ConfigError, match=r"FEDAPP_HEADS = .* must begin with a slash"):
        check(head)


def test_heads_lie_outside_of_the_site_folder(head, monkeypatch, tmp_path):
    monkeypatch.setenv("FEDAPP_HEADS", str(head.folder / "heads"))
    with pytest.raises(ConfigError, match="must not lie in the site folder"):
        check(head)
    monkeypatch.delenv("FEDAPP_HEADS")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert place_of(head.folder).parent == tmp_path / "state/fedapp/heads"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert place_of(head.folder).parent == tmp_path / ".local/state/fedapp/heads"
