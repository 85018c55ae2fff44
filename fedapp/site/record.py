"""What a site did, in a file that only grows: a line of JSON each, each with the hash of the last.

    FOLDER/record/record.jsonl     number, time, event and its facts, `before`, `hash`

A line that is changed, cut out or moved breaks the chain, and `verify` names it. The record's head
(`fedapp.site.rollback_guard`) lies outside of the folder and knows the SHA-256 of the whole file.
Before a line is added, and thus before every task, the file is compared with it: a record that was
changed anywhere, cut, or replaced by an older copy stops the site. Nothing of a patient is in a
record: no image, no name of a file, no label.
"""

import hashlib
import json
import os
import pwd
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedapp.core.disk import (
    append_durable,
    check_owned,
    make_folder,
    open_own_file,
    truncate_durable,
)
from fedapp.core.errors import StoreError, one_line
from fedapp.core.untrusted_files import UntrustedFileError, parse_json
from fedapp.protocol.messages import EPSILON
from fedapp.site.rollback_guard import ABSENT, Head, RecordError, heads_root

FOLDER, LINES = "record", "record.jsonl"
FIRST = "0" * 64
"""`before` of the first line."""
ACCEPTED = "accepted"
"""Event: a person took the record as it is for the newest one, and said why."""

_NEEDED = "readable and writable; without a record nothing is done"

Line = dict[str, Any]
_KEYS = {"number", "at", "event", "before", "hash"}
"""What every line says."""


@dataclass(frozen=True)
class RunLines:
    """A run's lines in a record, the oldest first. Runs of one name by two servers are two."""

    run: str
    lines: list[Line]

    def of(self, event: str) -> list[Line]:
        """Return the lines of an event."""
        return [line for line in self.lines if line["event"] == event]

    @property
    def bytes_sent(self) -> int:
        """Bytes of all answers."""
        return sum(line.get("bytes", 0) for line in self.of("sent"))

    @property
    def epsilon(self) -> float | None:
        """Of the models that left; None where they left without noise."""
        return max((line[EPSILON] for line in self.of("sent") if EPSILON in line), default=None)


def by_run(lines: list[Line]) -> list[RunLines]:
    """Return the runs that lines are of, in the order in which they came."""
    found: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        if "run" in line:
            found.setdefault((line["run"], line.get("identity", "")), []).append(line)
    return [RunLines(run, of) for (run, _), of in found.items()]


def minute(line: Line) -> str:
    """Return when a line was written: UTC, to the minute."""
    return str(line["at"])[:16].replace("T", " ")


def _nothing() -> None:
    """Ask nothing."""


@dataclass(frozen=True)
class Record:
    """A site's record. folder: the site's own folder."""

    folder: Path

    @property
    def path(self) -> Path:
        """The file of lines."""
        return self.folder / FOLDER / LINES

    def add(self, event: str, provided: Callable[[], None] = _nothing, /, **facts: object) -> None:
        """Write an event down; it is on the disk when this returns.

        provided: is called before, while no other program can add a line, so that what it decides
        from the record still holds when the line is there; what it raises keeps the line out. A
        line that a power cut left half is cut off, and a line says so. Raises StoreError where the
        disk refuses, RecordError where the record is not as this site left it: then nothing may go
        on, since nobody would know of it.
        """
        self._add(event, facts, provided)

    def check(self) -> None:
        """Compare the record with its head, as `add` does. Raises as `add` does."""
        with self._head.alone():
            self._head.check(_digest(self._whole()[0]))

    def accept(self, reason: str) -> None:
        """Take the record as it is for the one that the site left; a line says why.

        For a restored backup, another machine, and lost heads. Raises RecordError where the chain
        is broken: such a record is moved away, not accepted. Raises it too where this program runs
        as another user than the node, as by sudo: the node would not see that user's heads.
        """
        for one in (self.folder, self.path.parent):
            if one.exists() and (owner := one.stat().st_uid) not in {0, os.geteuid()}:
                raise RecordError(
                    f"{one}: belongs to {user_name(owner)}, and this program runs as "
                    f"{user_name()}, whose heads the node does not read ({heads_root()}): run it "
                    f"as {user_name(owner)}"
                )
        list(self._chained(self._whole()[0].splitlines(keepends=True)))
        facts = {"why": one_line(reason, 500), "by": user_name()}
        self._add(ACCEPTED, facts, _nothing, accept=True)

    def _add(
        self,
        event: str,
        facts: Mapping[str, object],
        provided: Callable[[], None],
        accept: bool = False,
    ) -> None:
        with self._head.alone():
            whole, torn = self._whole()
            total = hashlib.sha256(whole)  # of a long record this is what takes time: once
            if not accept:
                self._head.check(_said(total, whole))
            provided()
            try:
                make_folder(self.path.parent, mode=0o700)
            except OSError as error:
                raise StoreError(
                    f"{self.path.parent}: {error.strerror}: make it {_NEEDED}"
                ) from error
            if torn:
                truncate_durable(self.path, len(whole))
                whole = self._appended(whole, total, "mended", {"bytes": len(torn)}, accept)
            self._appended(whole, total, event, facts, accept and not torn)

    def _appended(
        self,
        whole: bytes,
        total: "hashlib._Hash",
        event: str,
        facts: Mapping[str, object],
        accept: bool,
    ) -> bytes:
        """Add a line to the whole ones; return all. total: the hash over them, brought along."""
        last = _read(whole[whole.rfind(b"\n", 0, -1) + 1 :], 0) if whole else None
        number, before = (last["number"] + 1, last["hash"]) if last else (1, FIRST)
        text, old = _text(_line(number, event, facts, before)), _said(total, whole)
        total.update(text)
        with self._head.advance(old, total.hexdigest(), accept=accept):
            append_durable(self.path, text)
        return whole + text

    def lines(self, holding: str = "") -> Iterator[Line]:
        """Yield every line, or those that hold an ASCII text; one that is no JSON: RecordError."""
        for number, text in enumerate(self._whole()[0].splitlines(keepends=True), 1):
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
        """Return how many lines there are, and what is worth a look although the record is whole.

        Raises RecordError, naming the line, where one was changed, cut out or moved, and where the
        record is not the one that its head knows.
        """
        with self._head.alone():
            whole, torn = self._whole()
            at, count, remarks = "", 0, []
            for line in self._chained(whole.splitlines(keepends=True)):
                count += 1
                if str(line["at"]) < at:
                    remarks.append(f"line {count}: the clock went back, from {at} to {line['at']}")
                at = str(line["at"])
                if line["event"] == "mended":
                    remarks.append(f"line {count}: a power cut or kill left half a line before it")
                if line["event"] == ACCEPTED:
                    remarks.append(f"line {count}: accepted as it was: {line['why']}")
            self._head.check(_digest(whole))
        if torn:
            remarks.append(f"after line {count}: half a line, which the next line cuts off")
        return count, remarks

    def _chained(self, texts: list[bytes]) -> Iterator[Line]:
        """Yield lines that follow each other as they were written. Raises RecordError."""
        before = FIRST
        for count, text in enumerate(texts, 1):
            line = _read(text, count)
            if line.get("number") != count or line.get("before") != before:
                raise RecordError(f"{self.path}: line {count}: does not follow the one before it")
            if line.get("hash") != _hash(line):
                raise RecordError(f"{self.path}: line {count}: was changed after it was written")
            before = line["hash"]
            yield line

    @property
    def _head(self) -> Head:
        return Head(
            self.folder, FOLDER, self.path, "take it as it is: fedapp audit --accept REASON"
        )

    def _whole(self) -> tuple[bytes, bytes]:
        """Return the whole lines, and what a power cut left of one after them.

        Raises ConfigError where the file or its folder is a link or somebody else's, StoreError
        where it cannot be read.
        """
        try:
            check_owned(self.path.parent)
            with open_own_file(self.path, os.O_RDONLY) as file:
                text = file.readall()
        except FileNotFoundError:
            return b"", b""
        except OSError as error:
            raise StoreError(f"{self.path}: {error.strerror}: make it {_NEEDED}") from error
        end = text.rfind(b"\n") + 1
        return text[:end], text[end:]


def user_name(number: int | None = None) -> str:
    """Return the name of a user, by the number; None: of this program's, for what it decides."""
    number = os.getuid() if number is None else number
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # a container's user often has no name
        return f"user {number}"


def _line(number: int, event: str, facts: Mapping[str, object], before: str) -> Line:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    line: Line = {"number": number, "at": now, "event": event, **facts, "before": before}
    return {**line, "hash": _hash(line)}


def _hash(line: Line) -> str:
    said = {key: value for key, value in line.items() if key != "hash"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _digest(whole: bytes) -> str:
    return _said(hashlib.sha256(whole), whole)


def _said(total: "hashlib._Hash", whole: bytes) -> str:
    return total.hexdigest() if whole else ABSENT


def _text(line: Line) -> bytes:
    return json.dumps(line).encode() + b"\n"


def _read(text: bytes, number: int) -> Line:
    try:
        line: Line = parse_json(text)
        if not (isinstance(line, dict) and line.keys() >= _KEYS):
            raise UntrustedFileError("it lacks what every line says")
    except UntrustedFileError as error:
        which = f"line {number}" if number else "the last line"
        raise RecordError(f"the record: {which}: is no line of it: {text[:40]!r}") from error
    return line
