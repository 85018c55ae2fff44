"""What a site did, in a file that only grows: a line of JSON each, each with the hash of the last.

    FOLDER/record/record.jsonl     number, time, event and its facts, `before`, `hash`
    FOLDER/record/head.json        the number and hash of the last line

A line that is changed, cut out or moved breaks the chain; the head tells where the end was cut
off. Whoever may write the folder can write a whole new record: copy the head elsewhere to be sure.
Nothing of a patient is in it: no image, no name of a file, no label.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedapp.ground.disk import append_durable, cut_durable, write_atomic
from fedapp.ground.errors import FedAppError, StoreError

FOLDER, LINES, HEAD = "record", "record.jsonl", "head.json"
FIRST = "0" * 64
"""`before` of the first line."""
_LOCK_S = 10.0
_TAIL = 2**16
"""Bytes from the end in which the last line lies: a line is shorter."""

Line = dict[str, Any]


class RecordError(FedAppError):
    """The record is not what was written."""


@dataclass(frozen=True)
class Record:
    """A site's record. folder: the site's own folder."""

    folder: Path

    @property
    def path(self) -> Path:
        """The file of lines."""
        return self.folder / FOLDER / LINES

    def add(self, event: str, **facts: object) -> None:
        """Write an event down; it is on the disk when this returns.

        A line that a power cut left half is cut off, and a line says so. Raises StoreError where
        the disk refuses, RecordError where the end of the record is damaged: then nothing may go
        on, since nobody would know of it.
        """
        with self._locked():
            last, whole, torn = self._end()
            number, before = (last["number"] + 1, last["hash"]) if last else (1, FIRST)
            if torn:
                cut_durable(self.path, whole)
                line = _line(number, "mended", {"bytes": torn}, before)
                append_durable(self.path, text := _text(line))
                number, before, whole = number + 1, line["hash"], whole + len(text)
            line = _line(number, event, facts, before)
            append_durable(self.path, _text(line))
            head = {"number": number, "hash": line["hash"]}
            try:
                write_atomic(
                    self.path.with_name(HEAD), json.dumps(head).encode(), durable=False, mode=0o600
                )
            except StoreError:  # the head must not fall behind by more than a kill's one line
                cut_durable(self.path, whole)
                raise

    def lines(self, holding: str = "") -> Iterator[Line]:
        """Yield every line, or those that hold an ASCII text; one that is no JSON: RecordError."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            for number, text in enumerate(file, 1):
                if holding.encode() in text:
                    yield _read(text, number)

    def readable(self) -> list[Line]:
        """Return the lines up to the first that is not as it was written; `verify` says which."""
        lines: list[Line] = []
        with suppress(RecordError, OSError):
            for line in self.lines():
                if line["hash"] != _hash(line):
                    break
                lines.append(line)
        return lines

    def verify(self) -> tuple[int, list[str]]:
        """Return how many lines there are, and what is worth a look although the chain is whole.

        Raises RecordError, naming the line, where one was changed, cut out or moved, or the end is
        gone.
        """
        before, at, count, remarks = FIRST, "", 0, []
        for line in self.lines():
            count += 1
            if line.get("number") != count or line.get("before") != before:
                raise RecordError(f"{self.path}: line {count}: does not follow the one before it")
            if line.get("hash") != _hash(line):
                raise RecordError(f"{self.path}: line {count}: was changed after it was written")
            if str(line["at"]) < at:
                remarks.append(f"line {count}: the clock went back, from {at} to {line['at']}")
            before, at = line["hash"], str(line["at"])
            if line["event"] == "mended":
                remarks.append(f"line {count}: a power cut or kill had left half a line before it")
        self._check_head(count)
        return count, remarks

    def _check_head(self, count: int) -> None:
        path = self.path.with_name(HEAD)
        try:
            head = json.loads(path.read_bytes())
            number, known = int(head["number"]), str(head["hash"])
        except FileNotFoundError:
            if count > 1:  # the first line is written before the first head
                raise RecordError(f"{path}: is gone: the record's end may be cut off") from None
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RecordError(f"{path}: cannot be read: {error}") from error
        found = next((one["hash"] for one in self.lines() if one["number"] == number), None)
        if number < count - 1 or found != known:
            raise RecordError(
                f"{self.path}: its end is cut off: line {number} was the last or more"
            )

    def _end(self) -> tuple[Line | None, int, int]:
        """Return the last whole line, the bytes up to its end, and those of a half one after it."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - _TAIL))
                tail = file.read()
        except FileNotFoundError:
            size, tail = 0, b""
        except OSError as error:
            raise StoreError(f"{self.path}: {error.strerror}: make it readable") from error
        whole, newline, torn = tail.rpartition(b"\n")
        if not newline and tail and size > len(tail):
            raise RecordError(
                f"{self.path}: its end is no line: `fedapp audit` says where it breaks"
            )
        if not newline:
            return None, 0, len(torn)
        line = _read(whole.rpartition(b"\n")[2], 0)
        if line.get("hash") != _hash(line):
            raise RecordError(f"{self.path}: its last line was changed: see `fedapp audit`")
        return line, size - len(torn), len(torn)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        folder = self.path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = FileLock(folder / ".lock", mode=0o600)
            lock.acquire(timeout=_LOCK_S)
        except Timeout as error:
            raise StoreError(f"{folder}: another program holds the record: end it") from error
        except OSError as error:
            raise StoreError(
                f"{folder}: {error.strerror}: make it writable; without a record nothing is done"
            ) from error
        try:
            yield
        finally:
            lock.release()


def _line(number: int, event: str, facts: Mapping[str, object], before: str) -> Line:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    line: Line = {"number": number, "at": now, "event": event, **facts, "before": before}
    return {**line, "hash": _hash(line)}


def _hash(line: Line) -> str:
    said = {key: value for key, value in line.items() if key != "hash"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _text(line: Line) -> bytes:
    return json.dumps(line).encode() + b"\n"


def _read(text: bytes, number: int) -> Line:
    try:
        line = json.loads(text)
        assert isinstance(line, dict) and {"number", "at", "event", "before", "hash"} <= line.keys()
    except (ValueError, AssertionError) as error:
        which = f"line {number}" if number else "the last line"
        raise RecordError(f"the record: {which}: is no line of it: {text[:40]!r}") from error
    return line
