"""Contents by digest: whole or absent, mended when damaged, bounded in memory, shared safely."""

import errno
import hashlib
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fedapp.core import disk
from fedapp.core.errors import StoreError
from fedapp.protocol import store
from fedapp.protocol.store import ModelStore


def digest_of(blob):
    return hashlib.sha256(blob).hexdigest()


def file_of(root, digest):
    return root / digest[:2] / f"{digest}.safetensors"


def parts(root):
    return list(root.rglob("*.tmp"))


def spare(root):
    return list((root / "spare").iterdir())


def failing(number):
    """Return a system call that always fails with this error number."""

    def call(*args, **more):
        raise OSError(number, os.strerror(number))

    return call


@pytest.fixture
def models(tmp_path):
    return ModelStore(tmp_path)


@pytest.fixture
def gone(models):
    """Digest of a content that was removed; its file is kept to be written over."""
    digest = models.put(b"gone")
    models.keep_only((), reuse=True)
    return digest


@pytest.fixture
def reads(monkeypatch):
    """Digests of the files that were read, in their order."""
    found, real = [], Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: found.append(path.stem) or real(path))
    return found


def test_name_is_the_content(models, tmp_path):
    digest = models.put(b"abc")
    # The SHA-256 of "abc" as printed in FIPS 180-2, appendix B.1.
    assert digest == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert file_of(tmp_path, digest).read_bytes() == b"abc"
    assert (models.has(digest), models.size(digest), models.digests()) == (True, 3, {digest})
    assert ModelStore(tmp_path).get(digest) == b"abc"


def test_empty_store_has_nothing_and_makes_no_folder(tmp_path):
    models, absent = ModelStore(tmp_path / "none"), digest_of(b"x")
    assert models.digests() == set() and not models.has(absent)
    models.keep_only(())
    for asked in (models.get, models.size):
        with pytest.raises(StoreError, match="no such model here: fetch it"):
            asked(absent)
    assert not (tmp_path / "none").exists()


def test_present_content_is_not_written_again(models, tmp_path):
    path = file_of(tmp_path, models.put(b"model"))
    before = path.stat()
    models.put(b"model")
    ModelStore(tmp_path).put(b"model", durable=True)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "A" * 64, "a" * 63, "a" * 64 + "\n"])
def test_only_digests_are_names(models, name):
    for asked in (models.get, models.has):
        with pytest.raises(StoreError, match="64 hex digits"):
            asked(name)


BLOB = bytes(range(256)) * 8
DAMAGED = {"cut": BLOB[:1024], "empty": b"", "flipped": b"\xff" + BLOB[1:]}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_file_is_removed_said_and_fetched_again(tmp_path, damage, caplog):
    digest = ModelStore(tmp_path).put(BLOB)
    file_of(tmp_path, digest).write_bytes(DAMAGED[damage])
    models = ModelStore(tmp_path)
    assert models.has(digest)  # only reading can tell
    with pytest.raises(StoreError, match=rf"{digest}.*damaged.*removed: fetch it again") as error:
        models.get(digest)
    assert "\n" not in str(error.value) and "damaged" in caplog.text
    assert not models.has(digest) and not file_of(tmp_path, digest).exists()
    assert models.put(BLOB) == digest
    assert ModelStore(tmp_path).get(digest) == BLOB


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("here", [True, False], ids=["this process", "another"])
def test_put_mends_a_damaged_file(models, tmp_path, damage, here):
    """As a power cut leaves it: the round is done again, and the same content put again."""
    digest = models.put(BLOB)
    file_of(tmp_path, digest).write_bytes(DAMAGED[damage])
    (models if here else ModelStore(tmp_path)).put(BLOB)
    assert ModelStore(tmp_path).get(digest) == BLOB


def test_what_is_known_to_be_whole_takes_bounded_memory(tmp_path, monkeypatch):
    """A site on the server's pool never removes anything: its store would grow with rounds."""
    monkeypatch.setattr(store, "MAX_VERIFIED", 3)
    models = ModelStore(tmp_path, memory_bytes=0)
    digests = [models.put(b"%d" % number) for number in range(5)]
    assert models.verify(digests[0])  # read once more, and now the last
    assert list(models._verified) == [digests[3], digests[4], digests[0]]
    os.utime(file_of(tmp_path, digests[3]), (0, 0))
    assert models.verify(digests[3])  # its times have changed: read, and the last again
    assert list(models._verified) == [digests[4], digests[0], digests[3]]


def test_memory_stays_within_its_bound_and_drops_the_least_used(tmp_path, reads):
    models = ModelStore(tmp_path, memory_bytes=250)
    a, b, c = (models.put(bytes([i]) * 100) for i in range(3))
    assert models.memory_used == 200  # a fell out
    models.get(b)  # now c is the least used
    assert models.get(a) == b"\0" * 100
    assert models.memory_used == 200
    models.get(a)
    models.get(b)
    assert reads == [a]
    models.get(c)
    assert reads == [a, c]
    for i in range(50):
        models.put(bytes([i]) * (i + 1))
        assert models.memory_used <= 250


def test_content_above_the_bound_stays_on_disk(tmp_path):
    models = ModelStore(tmp_path, memory_bytes=10)
    digest = models.put(b"x" * 11)
    assert models.get(digest) == b"x" * 11 and models.memory_used == 0
    models.put(b"x" * 10)
    assert models.memory_used == 10


def test_keep_only_collects_the_rest(models, tmp_path):
    a, b = models.put(b"a"), models.put(b"b")
    fresh, stale = tmp_path / a[:2] / ".fresh.tmp", tmp_path / b[:2] / ".stale.tmp"
    for path in (fresh, stale):
        path.write_bytes(b"half")
    old = stale.stat().st_mtime - disk.STALE_S - 60
    os.utime(stale, (old, old))
    models.keep_only([a, digest_of(b"never seen")])
    assert models.digests() == {a} and models.memory_used == 1
    with pytest.raises(StoreError):
        models.get(b)
    assert fresh.exists()  # its writer may be at work
    assert not stale.exists()


def test_interrupted_write_leaves_nothing(models, tmp_path, monkeypatch):
    def interrupted(part, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        models.put(b"model")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("durable", [False, True])
def test_full_disk_is_said_and_loses_nothing(models, tmp_path, monkeypatch, durable):
    earlier = models.put(b"earlier")
    monkeypatch.setattr(os, "replace", failing(errno.ENOSPC))
    with pytest.raises(StoreError) as error:
        models.put(b"later", durable=durable)
    message = str(error.value)
    assert str(file_of(tmp_path, digest_of(b"later"))) in message
    assert "No space left on device, 5 B needed, " in message
    assert "free): free space there" in message and "\n" not in message
    assert parts(tmp_path) == [] and not models.has(digest_of(b"later"))
    assert models.memory_used == len(b"earlier")
    assert ModelStore(tmp_path).get(earlier) == b"earlier"


def test_a_real_limit_on_file_size(models, tmp_path):
    """The kernel itself refuses, in the middle of the write."""
    earlier = models.put(b"earlier")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
    try:
        with pytest.raises(StoreError, match=r"File too large, 1\.0 MB needed.*free space"):
            models.put(b"x" * 1_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert parts(tmp_path) == [] and models.digests() == {earlier}


def test_a_path_that_cannot_be_a_folder(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match=r"cannot be written .*choose another folder"):
        ModelStore(tmp_path / "file" / "models").put(b"model")


# --- files that are written over ------------------------------------------------------------------


@pytest.mark.parametrize("later", [b"four", b"much longer than that", b"4"])
def test_a_new_content_is_written_over_the_file_of_one_that_is_gone(models, tmp_path, later):
    kept, gone = models.put(b"kept"), models.put(b"gone")
    file = file_of(tmp_path, gone).stat()
    assert models.keep_only([kept], reuse=True) == [gone]
    assert not models.has(gone) and models.digests() == {kept}
    with pytest.raises(StoreError, match="no such model here"):
        models.get(gone)
    digest = ModelStore(tmp_path).put(later)  # another process that writes to the folder
    assert file_of(tmp_path, digest).stat().st_ino == file.st_ino
    assert file_of(tmp_path, digest).read_bytes() == later
    assert ModelStore(tmp_path).get(digest) == later
    assert spare(tmp_path) == parts(tmp_path) == []
    assert models.put(b"one more") in models.digests()  # nothing is spare: a new file


def test_a_spare_file_that_another_process_took_is_passed_over(models, tmp_path):
    for blob in (b"a", b"b", b"c"):
        models.put(blob)
    models.keep_only((), reuse=True)
    models.put(b"d")  # it knows of all three now
    ModelStore(tmp_path).put(b"e")
    models.put(b"f")
    assert models.digests() == {digest_of(blob) for blob in (b"d", b"e", b"f")}
    assert spare(tmp_path) == []
    models.put(b"g")
    assert ModelStore(tmp_path).get(digest_of(b"g")) == b"g"


@pytest.mark.parametrize("kind", ["second name", "link"])
def test_what_a_file_shares_with_another_is_not_written_over(tmp_path, kind):
    """A copy of the pool, or equal files of two runs, may have been made links to one file."""
    models, other = ModelStore(tmp_path / "pool"), tmp_path / "elsewhere"
    file = file_of(models.root, models.put(b"gone"))
    if kind == "link":
        file.rename(other)
        file.symlink_to(other)
    else:
        os.link(file, other)
    models.keep_only((), reuse=True)
    digest = models.put(b"later")
    assert other.read_bytes() == b"gone"
    assert not file_of(models.root, digest).is_symlink()
    assert ModelStore(models.root).get(digest) == b"later"
    assert spare(models.root) == parts(models.root) == []


def test_a_reader_of_a_file_that_is_written_over_hears_that_it_is_gone(
    models, tmp_path, monkeypatch
):
    gone = models.put(b"gone")

    def meanwhile(self):
        with self.open("rb") as file:
            models.keep_only((), reuse=True)
            models.put(b"come")
            return file.read()

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", meanwhile)
        with pytest.raises(StoreError, match="no such model here: fetch it"):
            ModelStore(tmp_path).get(gone)
    assert ModelStore(tmp_path).get(digest_of(b"come")) == b"come"


def test_a_spare_file_that_may_not_be_written_to_is_passed_over(
    models, gone, tmp_path, monkeypatch
):
    """Such as another user's."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "utime", failing(errno.EACCES))
        digest = models.put(b"later")
    assert ModelStore(tmp_path).get(digest) == b"later"
    assert parts(tmp_path) == []


def test_an_old_spare_file_is_not_taken_for_a_leftover(models, gone, tmp_path, monkeypatch):
    """A server removes leftovers while a worker writes, whenever that was last written to."""
    [left] = spare(tmp_path)
    os.utime(left, (0, 0))
    replace = os.replace

    def meanwhile(part, target):
        ModelStore(tmp_path).keep_only(())
        replace(part, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", meanwhile)
        digest = models.put(b"")  # nothing that is written sets its time
    assert models.has(digest)


def test_what_stays_spare_goes_with_the_next_removal(models, gone, tmp_path):
    [left] = spare(tmp_path)
    b = models.put(b"b")  # over the file of what is gone
    assert not left.exists()
    models.put(b"c")
    models.keep_only([b], reuse=True)
    assert len(spare(tmp_path)) == 1
    models.keep_only([b], reuse=True)
    assert spare(tmp_path) == []
    models.keep_only([b])
    assert not (tmp_path / "spare").exists() and models.get(b) == b"b"


def test_a_write_over_a_spare_file_that_is_cut_leaves_no_content(
    models, gone, tmp_path, monkeypatch
):
    monkeypatch.setattr(os, "replace", failing(errno.ENOSPC))
    with pytest.raises(StoreError, match="No space left"):
        models.put(b"later")
    assert models.digests() == set() and not models.has(gone) and parts(tmp_path) == []


# --- what another process or the disk does --------------------------------------------------------


def test_a_file_that_cannot_be_set_aside_is_removed(models, tmp_path, monkeypatch):
    digest = models.put(b"model")
    monkeypatch.setattr(os, "replace", failing(errno.ENOSPC))
    assert models.keep_only((), reuse=True) == [digest]
    assert list(tmp_path.rglob(f"{digest}*")) == []


def test_a_file_that_cannot_be_removed_is_only_reported(models, monkeypatch, caplog):
    models.put(b"model")
    monkeypatch.setattr(Path, "unlink", failing(errno.EACCES))
    models.keep_only(())
    assert "cannot be removed (Permission denied)" in caplog.text


def test_a_file_that_cannot_be_read_is_written_again(models, tmp_path, monkeypatch):
    file = file_of(tmp_path, models.put(b"model"))
    before = file.stat().st_ino
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", failing(errno.EIO))
        ModelStore(tmp_path).put(b"model")
    assert file.stat().st_ino != before and file.read_bytes() == b"model"


def test_a_file_that_another_process_removes_first_is_no_trouble(models, monkeypatch, caplog):
    digest, plain = models.put(b"model"), Path.unlink

    def second(self, missing_ok=False):
        plain(self)
        plain(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", second)
    assert models.keep_only(()) == [digest] and caplog.text == ""


WRITER = """
import sys
from pathlib import Path
from fedapp.protocol.store import ModelStore
print("ready", flush=True)
sys.stdin.readline()
for i in range(60):
    blob = bytes([i]) * 200_000
    digest = ModelStore(Path(sys.argv[1])).put(blob)
    assert ModelStore(Path(sys.argv[1])).get(digest) == blob
"""


def test_two_processes_put_the_same_contents_at_once(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    root = Path(__file__).parents[2]
    writers = [subprocess.Popen(command, **pipes, text=True, cwd=root) for _ in range(2)]
    for writer in writers:  # both have loaded the code before either may begin
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        _, said = writer.communicate(timeout=60)
        assert writer.returncode == 0, said
    models = ModelStore(tmp_path, memory_bytes=0)
    assert len(models.digests()) == 60
    assert all(digest_of(models.get(digest)) == digest for digest in models.digests())
    assert parts(tmp_path) == []


def test_threads_share_one_store(tmp_path):
    models = ModelStore(tmp_path, memory_bytes=5000)
    blobs = [bytes([i]) * 1000 for i in range(20)]
    failed = []

    def work(first):
        try:
            for i in range(60):
                blob = blobs[(first + i) % len(blobs)]
                assert models.get(models.put(blob)) == blob
                assert models.memory_used <= 5000 + 1000  # one more while the oldest is dropped
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == [] and models.memory_used <= 5000


def test_durable_waits_for_the_disk(models, tmp_path, monkeypatch):
    synced, real = [], os.fsync

    def fsync(number):
        synced.append(os.readlink(f"/proc/self/fd/{number}"))
        real(number)

    monkeypatch.setattr(os, "fsync", fsync)
    digest = models.put(b"model")
    assert synced == [str(tmp_path)]  # a new folder in it, once
    synced.clear()
    models.put(b"model", durable=True)  # written before, but perhaps not on the disk yet
    assert synced == [str(file_of(tmp_path, digest)), str(tmp_path / digest[:2])]
    synced.clear()
    other = models.put(b"other", durable=True)
    assert [name.endswith(".tmp") for name in synced] == [False, True, False]
    assert [synced[0], synced[2]] == [str(tmp_path), str(tmp_path / other[:2])]
    synced.clear()
    models.sync([digest, other, "0" * 64])  # the last is not here: nothing to bring to the disk
    files = [str(file_of(tmp_path, each)) for each in sorted((digest, other))]
    assert synced == [*files, *(str(Path(name).parent) for name in files)]


# --- verifying what is there ----------------------------------------------------------------------


def test_a_content_is_read_once_to_verify_it_and_never_after_writing_it(tmp_path, reads):
    writer = ModelStore(tmp_path, memory_bytes=0)
    digest = writer.put(b"model")
    assert writer.verify(digest) and reads == []
    models = ModelStore(tmp_path, memory_bytes=0)
    assert all(models.verify(digest) for _ in range(3))
    assert reads == [digest]


@pytest.mark.parametrize("how", ["in place", "in place, time set back", "another file"])
def test_a_file_that_was_changed_is_verified_again(tmp_path, how):
    models = ModelStore(tmp_path, memory_bytes=0)
    path = file_of(tmp_path, digest := models.put(b"model"))
    models.verify(digest)
    before = path.stat()
    time.sleep(0.02)  # a file's times go by the kernel's ticks
    if how == "another file":
        other = tmp_path / "other"
        other.write_bytes(b"MODEL")
        other.replace(path)
    else:
        path.write_bytes(b"MODEL")  # as long as before
    if how == "in place, time set back":
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(StoreError, match="damaged"):
        models.verify(digest)
    assert not models.has(digest)


def test_what_is_absent_or_was_removed_is_not_verified(models):
    assert not models.verify(digest_of(b"x"))
    digest = models.put(b"x")
    models.keep_only(())
    assert not models.verify(digest)
