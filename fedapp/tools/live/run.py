"""How a run stands for its coordinator, from the run's folder: by site, who refused and why."""

from pathlib import Path
from statistics import median
from typing import Any

from fedapp.experiment.records import NODES, Records
from fedapp.ground.errors import one_line
from fedapp.ground.text import duration, percent
from fedapp.results.layout import DASH, Table
from fedapp.results.run.blocks import Block
from fedapp.results.run.page import render
from fedapp.tools.watch.view import Watched, look

Row = dict[str, Any]

SHOWN = 20
"""Warnings shown, the latest."""
SLOW = 2.0
"""Times the median of all sites' last answers from which one is called slow."""


def run_page(folder: Path) -> str:
    """Return the page of a run's folder. Raises RunError where it holds no run."""
    records = Records(folder)
    seen, sites, nodes = look(folder), records.sites(), records.read_json(NODES) or {}
    warnings = [one_line(one) for one in seen.warnings()[-SHOWN:]]
    blocks = [
        Block("Sites", _reading(nodes), tables=[_by_site(seen, sites, _of_sites(nodes))]),
        *_left_out(nodes),
        Block("Warnings", "The latest last.", lines=warnings or ["None."]),
    ]
    return render(
        f"Run {folder.name}",
        [f"{seen.name}. {_state(seen)}"],
        [],
        [[("", block)] for block in blocks],
    )


def _state(seen: Watched) -> str:
    if seen.ended:
        return f"Ended after round {seen.done}."
    state = "At work" if seen.working else "Cut: nobody is at it"
    left = f", about {duration(seen.left_s)} left" if seen.left_s is not None else ""
    return f"{state}: round {max(seen.done, 0)} of {seen.rounds}{left}."


def _reading(nodes: Row) -> str:
    if not nodes:
        return "Of the rounds that are done. Without Flower's nodes nobody is online or slow."
    return (
        f"Who is online, and how long an answer took: at {_at(nodes)} UTC. All else: of the rounds "
        f"that are done. Slow: more than {SLOW:g} times the median of all last answers."
    )


def _of_sites(nodes: Row) -> dict[str, Row]:
    """Return what is known of the nodes that are sites, by the site's number."""
    rows = nodes.get("nodes", {}).values()
    return {str(row["site"]): row for row in rows if "site" in row}


def _left_out(nodes: Row) -> list[Block]:
    """Return who was refused, or refused, before it was taken in."""
    rows = [
        [
            one_line(row["who"]),
            one_line(row["refused"], 300),
            "when its node signs on anew" if row["lasting"] else "later in the run",
            "online" if row["online"] else "offline",
            _at(row),
        ]
        for row in nodes.get("nodes", {}).values()
        if "refused" in row
    ]
    if not nodes:
        return []
    tables = [Table("Nodes", ("node", "why", "asked again", "state", "at, UTC"), rows, labels=5)]
    return [Block("Not taken in", "Nodes that are no site of this run.", tables=tables)]


def _at(row: Row) -> str:
    return str(row["at"])[:19].replace("T", " ")


def _took(node: Row, typical: float) -> str:
    """Return how long an answer took, against the median of all."""
    if "seconds" not in node:
        return DASH
    seconds = float(node["seconds"])
    times = seconds / typical if typical else 1.0
    slow = f": slow, {times:.1f} times the median" if times > SLOW else ""
    return f"{seconds:.1f}{slow}"


def _by_site(seen: Watched, sites: list[Row], nodes: dict[str, Row]) -> Table:
    last = sites[-1]["sites"] if sites else {}
    skipped: dict[str, list[tuple[int, str]]] = {}
    for row in seen.rows:
        for site, why in (row.get("skipped") or {}).items():
            skipped.setdefault(str(site), []).append((row["round"], why))
    typical = median([n["seconds"] for n in nodes.values() if "seconds" in n] or [0.0])
    rows = []
    for site in sorted({*map(str, range(seen.sites)), *last, *skipped}, key=int):
        took = [row["round"] for row in sites if site in row["sites"]]
        out = skipped.get(site, [])
        right, of = last.get(site, {}).get("val") or (0, 0)
        node = nodes.get(site, {})
        state = {True: "online", False: "offline", None: DASH}[node.get("online")]
        rows.append(
            [
                one_line(node.get("who", site)).removeprefix("site "),
                state,
                _took(node, typical),
                str(max(took)) if took else DASH,
                f"{percent(right / of)} ({right} of {of})" if of else DASH,
                str(len(out)),
                f"round {out[-1][0]}: {one_line(out[-1][1], 300)}" if out else DASH,
            ]
        )
    heads = (
        "site", "state", "last answer, s", "in round", "validation, %", "rounds without it",
        "why, last",
    )  # fmt: skip
    return Table("By site", heads, rows, labels=7)
