"""How a site stands, from its own folder: running, waiting, refused, what left."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedapp.ground.errors import FedAppError, one_line
from fedapp.ground.text import percent, size
from fedapp.messages.protocol import EPSILON
from fedapp.results.layout import DASH, Table
from fedapp.results.run.blocks import Block
from fedapp.results.run.page import render
from fedapp.site.house import House
from fedapp.site.record import Record
from fedapp.tools.node.approvals import Approvals
from fedapp.tools.node.audit import readable
from fedapp.tools.node.status import health, status_path
from fedapp.tools.node.terms import sentences

SHOWN = 20
"""Rows of a table, the latest first."""

Line = dict[str, Any]


def site_page(folder: Path, port: int) -> str:
    """Return the page. folder: the site's own; port: its node's, by which its state is known."""
    lines = readable(Record(folder))
    lead = [f"The node is {health(status_path(port))[1]}.", _whole(folder)]
    now = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
    blocks = [
        Block("Runs", f"As the record has them, at {now}.", tables=[_runs(lines)]),
        Block("What left today", "Since midnight UTC.", tables=[_left(lines)]),
        Block("Refused", "The latest first.", tables=[_refused(lines)]),
        _waiting(folder),
        _allowed(folder),
    ]
    return render("This site", lead, [], [[("", block)] for block in blocks])


def _whole(folder: Path) -> str:
    try:
        count, remarks = Record(folder).verify()
    except FedAppError as broken:
        return f"The record is BROKEN: {one_line(broken)}"
    more = f" {len(remarks)} remarks: fedapp audit." if remarks else ""
    return f"The record is whole: {count} lines.{more}"


def _runs(lines: list[Line]) -> Table:
    runs: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        if line["event"] in ("introduced", "asked", "sent"):
            runs.setdefault((line["run"], line["identity"]), []).append(line)
    rows = []
    for (name, _), of in reversed(list(runs.items())[-SHOWN:]):
        sent = [line for line in of if line["event"] == "sent"]
        asked = sum(line["event"] == "asked" for line in of)
        state = "at work" if asked > len(sent) and of[-1]["event"] == "asked" else "waiting"
        cost = [line[EPSILON] for line in sent if EPSILON in line]
        rows.append(
            [
                one_line(name),
                state,
                of[-1].get("asked", "who are you"),
                _at(of[-1]),
                _accuracy(sent, "val"),
                _accuracy(sent, "test"),
                size(sum(line["bytes"] for line in sent)),
                f"{max(cost):.4g}" if cost else DASH,
            ]
        )
    heads = ("run", "state", "last", "at, UTC", "validation, %", "test, %", "sent", EPSILON)
    return Table("By run, the latest first", heads, rows, labels=4)


def _accuracy(sent: list[Line], part: str) -> str:
    """Return the last accuracy of a part, with how many images it is of."""
    for line in reversed(sent):
        right, of = line["evaluations"].get(part, (0, 0))
        if of:
            return f"{percent(right / of)} ({right} of {of})"
    return DASH


def _at(line: Line) -> str:
    return str(line["at"])[:16].replace("T", " ")


def _left(lines: list[Line]) -> Table:
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    sent = [one for one in lines if one["event"] == "sent" and str(one["at"]).startswith(today)]
    roles = sorted({role for one in sent for role in one["digests"]})
    rows = [[role, str(sum(role in one["digests"] for one in sent))] for role in roles]
    rows += [["answers", str(len(sent))], ["bytes", size(sum(one["bytes"] for one in sent))]]
    return Table("By kind of content", ("what", "how many"), rows, labels=1)


def _refused(lines: list[Line]) -> Table:
    refused = [line for line in lines if line["event"] == "refused"][-SHOWN:]
    rows = [
        [_at(one), one_line(one["run"]), one["asked"], one_line(one["why"], 300)]
        for one in reversed(refused)
    ]
    return Table("By time", ("at, UTC", "run", "asked", "why"), rows, labels=4)


def _waiting(folder: Path) -> Block:
    try:
        waiting = Approvals(folder).waiting()
    except FedAppError as error:
        return Block("Waits for your word", one_line(error))
    rows = [[app.title, key] for key, app in waiting.items()]
    said = "To decide: fedapp approve HASH" if rows else "Nothing."
    tables = [Table("Apps", ("app", "hash"), rows, labels=2)] if rows else []
    return Block("Waits for your word", said, tables=tables)


def _allowed(folder: Path) -> Block:
    try:
        return Block("What this site allows", "", lines=list(sentences(House(folder).terms)))
    except FedAppError as error:
        return Block("What this site allows", f"Nothing: {one_line(error)}")
