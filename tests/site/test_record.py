"""A site's record: what is written stays, what was touched is found, what cannot be stops all."""

import errno
import json
import os
import shutil
import time
from contextlib import suppress
from itertools import count
from multiprocessing import get_context

import pytest

from fedapp.core import disk
from fedapp.core.errors import ConfigError, StoreError
from fedapp.protocol.messages import Evaluation, ModelRef, PseudoLabels, Reply, Scored, ScoredRef
from fedapp.site.policy import told_by
from fedapp.site.record import BEFORE_FIRST, Record, RecordError
from tests.faults.disk import Disk, may_mount


@pytest.fixture
def record(tmp_path):
    made = Record(tmp_path)
    for number in range(5):
        made.add("sent", run="a", bytes=number)
    return made


def test_lines_are_numbered_and_hang_together_by_hand(tmp_path):
    import hashlib

    record = Record(tmp_path)
    assert record.verify() == (0, [])  # none is whole
    record.add("asked", run="r")
    record.add("sent", bytes=7)
    one, two = map(json.loads, record.path.read_text().splitlines())
    assert (one["number"], one["before"], one["run"]) == (1, BEFORE_FIRST, "r")
    assert (two["number"], two["before"], two["bytes"]) == (2, one["hash"], 7)
    said = {key: value for key, value in two.items() if key != "hash"}
    assert two["hash"] == hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
    assert record.verify() == (2, [])


def rewritten(record, change):
    lines = record.path.read_text().splitlines(keepends=True)
    change(lines)
    record.path.write_text("".join(lines))


@pytest.mark.parametrize("change", [
    lambda lines: lines.pop(0),
    lambda lines: lines.pop(2),
    lambda lines: lines.pop(),
    lambda lines: (lines.pop(), lines.pop()),
    lambda lines: lines.clear(),
    lambda lines: lines.reverse(),
    lambda lines: lines.insert(1, lines[0]),
    lambda lines: lines.append(lines[-1]),
    lambda lines: lines.__setitem__(2, lines[2].replace('"bytes": 2', '"bytes": 3')),
    lambda lines: lines.__setitem__(2, lines[2].replace("sent", "asked")),
    lambda lines: lines.__setitem__(2, "\n"),
    lambda lines: lines.__setitem__(2, "{}\n"),
    lambda lines: lines.__setitem__(2, "[" * 100_000 + "\n"),
    lambda lines: lines.__setitem__(2, "9" * 5000 + "\n"),
    lambda lines: lines.__setitem__(4, lines[4][:20]),
    lambda lines: lines.__setitem__(0, lines[0].replace("2", "3", 1)),
])  # fmt: skip
def test_whatever_is_changed_cut_or_moved_is_found(record, change):
    rewritten(record, change)
    with pytest.raises(RecordError):
        record.verify()


def test_every_single_byte_counts(record):
    """Each byte of the middle line, made another one: 0 of them unnoticed."""
    text = record.path.read_bytes()
    start = text.index(b"\n", text.index(b"\n") + 1) + 1
    for place in range(start, text.index(b"\n", start)):
        other = b"x" if text[place : place + 1] != b"x" else b"y"
        record.path.write_bytes(text[:place] + other + text[place + 1 :])
        with pytest.raises(RecordError):
            record.verify()
    record.path.write_bytes(text)
    assert record.verify() == (5, [])


def test_a_head_that_is_gone_or_damaged_is_found_and_accepted_by_a_persons_word(record, tmp_path):
    head = record._head._path
    for _ in range(2):
        head.write_bytes(b"{}")
        with pytest.raises(RecordError, match="--accept REASON"):
            record.check()
        head.unlink()
        with pytest.raises(RecordError, match="--accept REASON"):
            record.add("sent")
        record.accept("moved to another machine")
    assert record.verify()[0] == 7
    assert record.verify()[1] == [
        f"line {number}: accepted as it was: moved to another machine" for number in (6, 7)
    ]


OLDER = {
    "a cut end": lambda before, lines: lines[:-1],
    "an older copy": lambda before, lines: before,
    "a cut end with a new one that follows": lambda before, lines: [*lines[:-2], lines[-1]],
    "a changed line in the middle": lambda before, lines: [
        *lines[:2], lines[2].replace('"bytes": 2', '"bytes": 3'), *lines[3:]],
    "a changed end": lambda before, lines: [*lines[:-1], lines[-1].replace("3.0", "2.0")],
    "nothing": lambda before, lines: [],
}  # fmt: skip


@pytest.mark.parametrize("how", OLDER)
def test_whatever_is_not_the_newest_record_stops_the_site_before_its_next_line(record, how):
    before = record.path.read_text().splitlines(keepends=True)
    record.add("sent", epsilon=3.0)
    lines = record.path.read_text().splitlines(keepends=True)
    record.path.write_text(older := "".join(OLDER[how](before, lines)))
    for asked in (record.check, lambda: record.add("started")):
        with pytest.raises(RecordError, match="--accept REASON"):
            asked()
    assert record.path.read_text() == older  # nothing was added
    record.path.unlink()
    with pytest.raises(RecordError, match="is gone"):
        record.check()
    record.path.write_text("".join(lines))
    record.add("started")


def test_a_whole_record_that_somebody_made_anew_is_found(record, tmp_path):
    """Whoever may write the folder can make a chain that is whole in itself."""
    other = Record(tmp_path / "other")
    other.folder.mkdir()
    for number in range(5):
        other.add("sent", run="a", bytes=number * 100)
    record.path.write_bytes(other.path.read_bytes())
    with pytest.raises(RecordError, match="older, cut or changed"):
        record.check()


def test_a_restored_backup_goes_on_by_a_persons_word_and_a_broken_chain_does_not(record):
    backup = record.path.read_bytes()
    record.add("sent", epsilon=3.0)
    record.path.write_bytes(backup)
    record.accept("disk failed on 3 May; the backup of the night before")
    assert [line["event"] for line in record.lines()][-1] == "accepted"
    record.add("started")
    rewritten(record, lambda lines: lines.pop(2))
    with pytest.raises(RecordError, match="line 3: does not follow"):
        record.accept("never mind")


@pytest.mark.parametrize("which", ["record/record.jsonl", "record"])
def test_a_record_that_is_a_link_is_refused(record, tmp_path, which):
    path = record.folder / which
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    for asked in (
        record.check,
        record.verify,
        lambda: record.add("sent"),
        lambda: [*record.lines()],
    ):
        with pytest.raises(ConfigError, match="is a link"):
            asked()


def test_half_a_line_of_a_killed_program_is_cut_off_and_said(record):
    with record.path.open("ab") as file:
        file.write(b'{"number": 6, "at"')
    record.add("sent", bytes=6)
    count, remarks = record.verify()
    assert count == 7 and "half a line" in remarks[0]
    mended = [line for line in record.lines() if line["event"] == "mended"]
    assert [line["bytes"] for line in mended] == [18]


def test_a_clock_that_jumps_is_a_remark_and_no_fault(record, monkeypatch):
    class Before:
        @staticmethod
        def now(zone):
            from datetime import datetime

            return datetime(2020, 1, 1, tzinfo=zone)

    monkeypatch.setattr("fedapp.site.record.datetime", Before)
    record.add("sent")
    count, remarks = record.verify()
    assert count == 6 and "the clock went back" in remarks[0] and "2020-01-01" in remarks[0]


def test_a_full_disk_is_an_error_and_leaves_the_record_whole(record, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(disk.os, "fsync", full)
        with pytest.raises(StoreError, match="No space left"):
            record.add("sent")
    assert record.verify() == (5, [])
    record.add("sent")
    assert record.verify() == (6, [])


@pytest.mark.skipif(not may_mount(), reason="needs the right to mount a small file system")
def test_a_disk_that_is_full_takes_no_line_and_what_was_there_stays(tmp_path):
    with Disk(tmp_path / "small", 1) as disk:
        record = Record(tmp_path / "small")
        record.add("sent", bytes=1)
        disk.fill()
        written, refused = 1, 0
        for number in range(30):  # the last block of the file has room for some, the head's has not
            try:
                record.add("sent", bytes=number, why="x" * 500)
                written += 1
            except StoreError as error:
                assert "No space left" in str(error)
                refused += 1
            assert record.verify() == (written, [])
        assert refused
        disk.free()
        record.add("sent", bytes=2)
        assert record.verify() == (written + 1, [])


def _add_for_ever(folder, told):
    for number in count():
        Record(folder).add("sent", bytes=number)
        told.send(number)


def test_who_is_killed_at_any_moment_loses_no_line_that_was_told_as_written(tmp_path):
    """Each program is killed while it writes; the next one goes on."""
    spawn, written = get_context("spawn"), 0
    pauses = (0.0, 0.003, 0.02)
    for pause in pauses:
        hears, told = spawn.Pipe(duplex=False)
        program = spawn.Process(target=_add_for_ever, args=(tmp_path, told))
        program.start()
        hears.recv()
        time.sleep(pause)
        program.kill()
        program.join()
        told.close()
        written += 1
        with suppress(EOFError):
            while hears.poll():
                hears.recv()
                written += 1
    record = Record(tmp_path)
    record.add("sent", bytes=-1)
    lines, _ = record.verify()
    events = [line["event"] for line in record.lines()]
    assert (
        written + 1 <= lines <= written + 1 + 2 * len(pauses)
    )  # a line not yet told of, and one of mending
    assert set(events) <= {"sent", "mended"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_to_is_an_error(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="without a record nothing is done"):
        Record(tmp_path).add("asked")


def test_a_file_in_the_way_is_an_error(tmp_path):
    (tmp_path / "record").write_text("")
    with pytest.raises(StoreError, match="without a record nothing is done"):
        Record(tmp_path).add("asked")


def _add(folder):
    for number in range(20):
        Record(folder).add("sent", bytes=number)


def test_several_programs_write_one_record(tmp_path):
    """And one head: no change of it is lost."""
    spawn = get_context("spawn")
    every = [spawn.Process(target=_add, args=(tmp_path,)) for _ in range(3)]
    for one in every:
        one.start()
    for one in every:
        one.join()
    assert Record(tmp_path).verify() == (60, [])
    assert Record(tmp_path)._head.mark().count == 120


def test_only_its_owner_may_read_it(record):
    assert record.path.parent.stat().st_mode & 0o777 == 0o700


def test_a_line_names_everything_that_an_answer_tells():
    """The table of answers by class, which the server reads, is named as much as the model is."""
    tested = Evaluation(((3, 1), (0, 4)), (8,), (7,), (6.5,))
    scored = Scored(((3, 1), (0, 4)), (8,), (7,), (6.5,), ((8,), (8,)))
    nobody = Evaluation(((0, 0), (0, 0)), (0,), (0,), (0.0,))
    guesses = PseudoLabels((5, 6), (11,))
    answer = Reply(
        0, 1, "0" * 64, helpers=(ScoredRef(ModelRef(2, 0, "1" * 64), 0.5),),
        metrics={"steps": 3.0, "loss": 1.0},
        evaluations={"test": tested, "val": scored, "val_alone": nobody}, pseudo=guesses,
    )  # fmt: skip
    assert told_by(answer) == [
        "test: 8 answers by true and by given class, and by confidence",
        "val: 8 answers by true and by given class, and by confidence, and by score",
        "11 pseudo-labels by class and by uncertainty",
        "its relation to 1 peer",
        "numbers: loss, steps",
    ]
    assert told_by(Reply(0, 1, "0" * 64)) == []


def test_a_copy_on_another_machine_tells_its_last_line_and_a_changed_one_does_not(record, tmp_path):
    record.add("sent", bytes=7)
    record.add("sent", bytes=8)
    shutil.copytree(record.folder, tmp_path / "copy")
    copied = Record(tmp_path / "copy")
    with pytest.raises(RecordError, match="has no head of it"):
        copied.verify()
    assert copied.last() == record.last() and record.last()[0] == record.verify()[0]
    assert Record(tmp_path / "none").last() == (0, BEFORE_FIRST)
    copied.path.write_text(copied.path.read_text().replace("sent", "seen"))
    with pytest.raises(RecordError, match="was changed"):
        copied.last()
