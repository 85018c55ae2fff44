"""What a site did, in a file that only grows: a line of JSON each, each with the hash of the last.

    FOLDER/record/record.jsonl     number, time, event and its facts, `before`, `hash`

If a line is changed, cut out or moved, the chain is broken, and `verify` names the line. The head
of the record (`fedapp.site.rollback_guard`) lies outside of the folder and has the SHA-256 of the
whole file. Before a line is added, and thus before every task, the file is compared with its head:
the site stops if the record was changed anywhere, was cut, or was replaced by an older copy. A
record holds nothing of a patient: no image, no name of a file, no label.
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
BEFORE_FIRST = "0" * 64
"""The value of `before` in the first line."""
ACCEPTED = "accepted"
"""Event: a person declared that the record is the newest one as it is, and gave a reason."""

_NEEDED = "readable and writable; without a record nothing is done"

Line = dict[str, Any]
_KEYS = {"number", "at", "event", "before", "hash"}
"""The keys that every line has."""


@dataclass(frozen=True)
class RunLines:
    """The lines of one run, the oldest first. Two servers' runs of one name have two identities."""

    run: str
    lines: list[Line]

    def of(self, event: str) -> list[Line]:
        """Return the lines with this event."""
        return [line for line in self.lines if line["event"] == event]

    @property
    def bytes_sent(self) -> int:
        """Bytes of all answers together."""
        return sum(line.get("bytes", 0) for line in self.of("sent"))

    @property
    def epsilon(self) -> float | None:
        """The largest epsilon of what left; None if nothing left with noise."""
        return max((line[EPSILON] for line in self.of("sent") if EPSILON in line), default=None)


def by_run(lines: list[Line]) -> list[RunLines]:
    """Group lines by run, in the order of each run's first line."""
    found: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        if "run" in line:
            found.setdefault((line["run"], line.get("identity", "")), []).append(line)
    return [RunLines(run, of) for (run, _), of in found.items()]


def minute(line: Line) -> str:
    """Return the minute at which a line was written, UTC, such as 2026-01-31 08:05."""
    return str(line["at"])[:16].replace("T", " ")


def _nothing() -> None:
    """Do nothing: a line that needs no check."""


@dataclass(frozen=True)
class Record:
    """A site's record. folder: the site's own folder."""

    folder: Path

    @property
    def path(self) -> Path:
        """The file of lines."""
        return self.folder / FOLDER / LINES

    def add(self, event: str, provided: Callable[[], None] = _nothing, /, **facts: object) -> None:
        """Add a line for an event. It is on the disk when this returns.

        provided: is called first, while no other program can add a line; so a decision that it
        takes from the record still holds when the line is added. If it raises, no line is added. A
        line that a power cut left half written is cut off, and a line says so. Raises StoreError if
        the disk refuses, RecordError if the record is not as this site left it. After an error the
        caller must not go on, since the record would not show it.
        """
        self._add(event, facts, provided)

    def check(self) -> None:
        """Compare the record with its head, as `add` does. Raises as `add` does."""
        with self._head.locked():
            self._head.check(_digest(self._whole()[0]))

    def accept(self, reason: str) -> None:
        """Accept the record as it is, although its head says otherwise; a line says why.

        This is for a restored backup, another machine, and lost heads. Raises RecordError if the
        chain is broken: such a record must be moved away. Raises it too if this program runs as
        another user than the node, as by sudo: the node would not see that user's heads.
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
        with self._head.locked():
            whole, torn = self._whole()
            total = hashlib.sha256(whole)  # computed once: for a long record it takes most time
            if not accept:
                self._head.check(_digest_of(total, whole))
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
        """Add a line to the whole lines; return all. total: their running hash."""
        last = _read(whole[whole.rfind(b"\n", 0, -1) + 1 :], 0) if whole else None
        number, before = (last["number"] + 1, last["hash"]) if last else (1, BEFORE_FIRST)
        text, old = _text(_line(number, event, facts, before)), _digest_of(total, whole)
        total.update(text)
        with self._head.advance(old, total.hexdigest(), accept=accept):
            append_durable(self.path, text)
        return whole + text

    def lines(self, holding: str = "") -> Iterator[Line]:
        """Yield the lines that have an ASCII text. Raises RecordError for one that is no JSON."""
        for number, text in enumerate(self._whole()[0].splitlines(keepends=True), 1):
            if holding.encode() in text:
                yield _read(text, number)

    def readable(self) -> list[Line]:
        """Return the lines before the first one that was changed; `verify` names that one."""
        lines: list[Line] = []
        with suppress(RecordError, OSError):
            for line in self.lines():
                if line["hash"] != _hash(line):
                    break
                lines.append(line)
        return lines

    def verify(self) -> tuple[int, list[str]]:
        """Return how many lines there are, and remarks on lines that a person should look at.

        Raises RecordError if a line was changed, cut out or moved (it names the line), and if the
        record is not the one that its head knows.
        """
        with self._head.locked():
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

    def last(self) -> tuple[int, str]:
        """Return number and hash of the last line, whatever the head knows: also of a copy.

        Raises RecordError if a line was changed, cut out or moved. Without lines: (0, 64 zeros).
        """
        number, digest = 0, BEFORE_FIRST
        for line in self._chained(self._whole()[0].splitlines(keepends=True)):
            number, digest = line["number"], line["hash"]
        return number, digest

    def _chained(self, texts: list[bytes]) -> Iterator[Line]:
        """Yield the lines. Raises RecordError for the first that does not follow the one before."""
        before = BEFORE_FIRST
        remedy = f"put its newest copy back, or move {self.path} away and {self._accepting}"
        for count, text in enumerate(texts, 1):
            at = f"{self.path}: line {count}"
            line = _read(text, count)
            if line.get("number") != count or line.get("before") != before:
                raise RecordError(f"{at}: does not follow the one before it: {remedy}")
            if line.get("hash") != _hash(line):
                raise RecordError(f"{at}: was changed after it was written: {remedy}")
            before = line["hash"]
            yield line

    @property
    def _head(self) -> Head:
        return Head(self.folder, FOLDER, self.path, self._accepting)

    @property
    def _accepting(self) -> str:
        """The last remedy: a person says that the record is as it is."""
        return f"accept it as it is: fedapp audit --site-folder {self.folder} --accept REASON"

    def _whole(self) -> tuple[bytes, bytes]:
        """Return the whole lines, and the bytes of a half-written line after them.

        Raises ConfigError if the file or its folder is a link or belongs to another user,
        StoreError if it cannot be read.
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
    """Return a user's name. number: the user id; None: that of this program."""
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
    return _digest_of(hashlib.sha256(whole), whole)


def _digest_of(total: "hashlib._Hash", whole: bytes) -> str:
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
