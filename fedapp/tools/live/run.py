"""How a run stands for its coordinator, from the run's folder: by site, who refused and why."""

from pathlib import Path
from typing import Any

from fedapp.experiment.records import Records
from fedapp.ground.errors import one_line
from fedapp.ground.text import duration, percent
from fedapp.results.layout import DASH, Table
from fedapp.results.run.blocks import Block
from fedapp.results.run.page import render
from fedapp.tools.watch.view import Watched, look

Row = dict[str, Any]

SHOWN = 20
"""Warnings shown, the latest."""
_READING = (
    "Of the rounds that are done. A site that refused before it was taken in is named in the run's "
    "log, with its reason."
)


def run_page(folder: Path) -> str:
    """Return the page of a run's folder. Raises RunError where it holds no run."""
    seen, sites = look(folder), Records(folder).sites()
    warnings = [one_line(one) for one in seen.warnings()[-SHOWN:]]
    blocks = [
        Block("Sites", _READING, tables=[_by_site(seen, sites)]),
        Block("Warnings", "The latest last.", lines=warnings or ["None."]),
    ]
    return render(seen.name, [_state(seen)], [], [[("", block)] for block in blocks])


def _state(seen: Watched) -> str:
    if seen.ended:
        return f"Ended after round {seen.done}."
    state = "At work" if seen.working else "Cut: nobody is at it"
    left = f", about {duration(seen.left_s)} left" if seen.left_s is not None else ""
    return f"{state}: round {max(seen.done, 0)} of {seen.rounds}{left}."


def _by_site(seen: Watched, sites: list[Row]) -> Table:
    last = sites[-1]["sites"] if sites else {}
    skipped: dict[str, list[tuple[int, str]]] = {}
    for row in seen.rows:
        for site, why in (row.get("skipped") or {}).items():
            skipped.setdefault(str(site), []).append((row["round"], why))
    rows = []
    for site in sorted({*map(str, range(seen.sites)), *last, *skipped}, key=int):
        took = [row["round"] for row in sites if site in row["sites"]]
        out = skipped.get(site, [])
        right, of = last.get(site, {}).get("val") or (0, 0)
        rows.append(
            [
                site,
                str(max(took)) if took else DASH,
                f"{percent(right / of)} ({right} of {of})" if of else DASH,
                str(len(out)),
                f"round {out[-1][0]}: {one_line(out[-1][1], 300)}" if out else DASH,
            ]
        )
    heads = ("site", "last answered in round", "validation, %", "rounds without it", "why, last")
    return Table("Sites", heads, rows, labels=5)
