"""What a site's record says: whether it is whole, what left, what was refused, epsilon so far."""

from pathlib import Path

from fedapp.ground.errors import FedAppError, RunError, nearest, one_line
from fedapp.ground.text import percent, size
from fedapp.messages.protocol import EPSILON
from fedapp.results.layout import DASH, Table
from fedapp.results.run.blocks import Block
from fedapp.results.run.page import render
from fedapp.site.record import Line, Record

SHOWN = 20
"""Rows of a table, the latest first."""


def record_blocks(folder: Path, run: str) -> list[Block]:
    """Return what the record in a site's folder says of a run. Raises RunError: it has none."""
    every = Record(folder).readable()
    lines = [line for line in every if line.get("run") == run]
    if not lines:
        known = sorted({str(line["run"]) for line in every if line.get("run")})
        raise RunError(f"{folder}: its record has no run {run!r}; {nearest(run, known)}")
    sent, said = [line for line in lines if line["event"] == "sent"], _epsilon(every, run)
    return [
        Block("The site's record", whole(folder), tables=[runs(lines)]),
        Block("What left", f"{len(sent)} answers, each with its line.", tables=[_sent(sent)]),
        Block("What was refused", "The latest first.", tables=[refused(lines)]),
        Block("Epsilon so far", "Of the models that left, at the runs' delta.", lines=said),
    ]


def record_page(folder: Path, run: str) -> str:
    """Return a page of that alone, for a site, which has no run folder. Raises as above."""
    blocks = record_blocks(folder, run)
    lead = [f"What this site has in its record of run {run}. It names no other site."]
    return render(f"Run {run} at this site", lead, [], [[("", block)] for block in blocks])


def _sent(sent: list[Line]) -> Table:
    rows = [
        [_at(one), one["asked"], ", ".join(sorted(one["digests"])) or DASH, size(one["bytes"])]
        for one in sent[: -SHOWN - 1 : -1]
    ]
    total = ["all", str(len(sent)), "", size(sum(one["bytes"] for one in sent))]
    return Table(
        "The latest first", ("at, UTC", "asked", "contents", "size"), [total, *rows], labels=3
    )


def _epsilon(lines: list[Line], run: str) -> list[str]:
    spent: dict[tuple[str, str], float] = {}
    for line in lines:
        if EPSILON in line:
            of = str(line.get("run", "")), str(line.get("identity", ""))
            spent[of] = max(spent.get(of, 0.0), float(line[EPSILON]))
    mine = sum(cost for (name, _), cost in spent.items() if name == run)
    if not spent:
        return ["None: no run has sent models with noise, so that nothing bounds what they tell."]
    return [
        f"This run: {mine:.4g}." if mine else "This run: none, its models left without noise.",
        f"All runs in the record, added up: {sum(spent.values()):.4g}. Runs without noise count "
        "nothing, though they tell most.",
    ]


def whole(folder: Path) -> str:
    """Say whether a site's record is what was written."""
    try:
        count, remarks = Record(folder).verify()
    except FedAppError as broken:
        return f"The record is BROKEN: {one_line(broken)}"
    more = f" {len(remarks)} remarks: fedapp audit." if remarks else ""
    return f"The record is whole: {count} lines.{more}"


def runs(lines: list[Line]) -> Table:
    """Return the runs that were at a site, the latest first."""
    by_run: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        if line["event"] in ("introduced", "asked", "sent"):
            by_run.setdefault((line["run"], line["identity"]), []).append(line)
    rows = []
    for (name, _), of in reversed(list(by_run.items())[-SHOWN:]):
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


def refused(lines: list[Line]) -> Table:
    """Return what was refused, the latest first."""
    every = [line for line in lines if line["event"] == "refused"][-SHOWN:]
    rows = [
        [_at(one), one_line(one["why"], 300), one["asked"], one_line(one["run"])]
        for one in reversed(every)
    ]
    return Table("By time", ("at, UTC", "why", "asked", "run"), rows, labels=4)
