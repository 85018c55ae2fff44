"""How a run stands, as its folder tells, and as a screen of 80 columns shows it.

Nothing is asked of the run itself.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedapp.core.errors import RunError, one_line
from fedapp.core.formatting import duration, percent, size
from fedapp.core.progress import RECENT_ROUNDS
from fedapp.experiment.preset_files import read_yaml
from fedapp.experiment.run_folder import Row, RunFolder, is_running
from fedapp.server.accuracy_drop import accuracy_drop_warning

WIDTH = 36
"""Columns of the bar and of a curve."""
SHOWN = 5
"""Warnings shown, the latest."""
_BARS, _ASCII = "▁▂▃▄▅▆▇█", "_.-=+*%#"


@dataclass(frozen=True)
class Watched:
    """One look at a run.

    rounds: to be done after the warm-up. rows: of metrics.jsonl, the warm-up's first. working:
    whether a server is at it; ended: whether it is done. silent_s: seconds since the last row.
    """

    name: str
    method: str
    sites: int
    rounds: int
    rows: Sequence[Row]
    working: bool
    ended: bool
    silent_s: float

    @property
    def done(self) -> int:
        """Rounds done after the warm-up; -1 before the warm-up is over."""
        return int(self.rows[-1]["round"]) if self.rows else -1

    @property
    def round_s(self) -> float | None:
        """Mean seconds of the latest rounds; None before the first one."""
        marks = [
            row["wall_seconds"] for row in self.rows[-RECENT_ROUNDS - 1 :] if "wall_seconds" in row
        ]
        return (marks[-1] - marks[0]) / (len(marks) - 1) if len(marks) > 1 else None

    @property
    def left_s(self) -> float | None:
        """Seconds left, as the latest rounds took; None where nothing can be said."""
        if self.round_s is None or self.done >= self.rounds:
            return None
        return max(self.round_s * (self.rounds - self.done) - self.silent_s, 0.0)

    def accuracies(self, part: str) -> list[float]:
        """Return the mean accuracies on "val" or "test", round by round, as far as measured."""
        every = (row.get(f"mean_{part}_accuracy") for row in self.rows)
        return [accuracy for accuracy in every if accuracy is not None]

    def warnings(self) -> list[str]:
        """Return a line for each site that was skipped and each fall of the average, in order."""
        lines = []
        for before, row in zip([{}, *self.rows], self.rows, strict=False):
            lines += warnings_of(row, before)
        return lines


def warnings_of(row: Row, before: Row) -> list[str]:
    """Return what one round deserves attention for. before: the row of the round before."""
    skipped = row.get("skipped") or {}
    lines = [f"round {row['round']}: site {k} skipped: {reason}" for k, reason in skipped.items()]
    fall = accuracy_drop_warning(row, before)
    return [*lines, fall] if fall else lines


def look(run: Path) -> Watched:
    """Return how a run stands. Raises RunError where the folder holds no run."""
    if not (run / "config.yaml").is_file():
        several = (run / "cells").is_dir()
        remedy = "name a run of it, below cells/" if several else "name the folder of a run"
        raise RunError(f"{run}: {'a comparison' if several else 'no run'}: {remedy}")
    plain = read_yaml(run / "config.yaml")
    # Asked first: a run that ends meanwhile is not taken for one that was cut.
    working = is_running(run)
    rows = RunFolder(run).metrics()
    metrics = run / "metrics.jsonl"
    return Watched(
        name=str(plain["name"]),
        method=str(plain["method"]["name"]),
        sites=plain["split"]["num_clients"],
        rounds=plain["rounds"]["num_rounds"],
        rows=rows,
        working=working,
        ended=not working and (run / "summary.json").is_file(),
        silent_s=max(time.time() - metrics.stat().st_mtime, 0.0) if rows else 0.0,
    )


def curve(values: Sequence[float], width: int, marks: str = _BARS) -> str:
    """Return values as one line of at most `width` marks, the lowest value the first mark.

    Where there are more values than columns, a column is the mean of its share of them.
    """
    columns = min(len(values), width)
    cuts = [len(values) * column // columns for column in range(columns)] + [len(values)]
    shown = [fmean(values[a:b]) for a, b in pairwise(cuts)]
    low, high = min(shown, default=0.0), max(shown, default=0.0)
    scale = (len(marks) - 1) / (high - low) if high > low else 0.0
    return "".join(marks[round((value - low) * scale)] for value in shown)


def screen(seen: Watched, unicode: bool = True) -> RenderableType:
    """Return what is shown. unicode: whether the terminal can show bars."""
    table = Table.grid(padding=(0, 2))
    table.add_column(width=11)
    table.add_column(width=WIDTH)
    table.add_column()
    done = max(seen.done, 0)
    bar = ProgressBar(total=max(seen.rounds, 1), completed=done, width=WIDTH)
    where = f"round {done} of {seen.rounds}" if seen.done >= 0 else "warm-up"
    table.add_row("rounds", bar, where)
    for part, label in (("test", "test"), ("val", "validation")):
        if values := seen.accuracies(part):
            ends = f"{percent(values[-1])} % (best {percent(max(values))})"
            table.add_row(label, curve(values, WIDTH, _BARS if unicode else _ASCII), ends)
    head = Text(f"{seen.name}: {seen.method}, {seen.sites} sites")
    lines: list[RenderableType] = [head, table]
    lines += [Text(f"{label:<13}{said}") for label, said in _facts(seen)]
    warnings = seen.warnings()
    if len(warnings) > SHOWN:
        lines.append(Text(f"{len(warnings)} warnings, the latest:"))
    lines += [Text(one_line(warning), style="yellow") for warning in warnings[-SHOWN:]]
    return Group(*lines)


def _facts(seen: Watched) -> list[tuple[str, str]]:
    if not seen.rows:
        return [("sites", "are being warmed up")] if seen.working else []
    last = seen.rows[-1]
    skipped = len(last.get("skipped") or {})
    late = f", {skipped} late or skipped" if skipped else ""
    facts = [("sites", f"{last.get('trained', 0)} trained in the last round{late}")]
    if "bytes_down" in last:
        sent = f"{size(last['bytes_down'])} to sites, {size(last['bytes_up'])} to the server"
        facts.append(("sent", sent))
    times = [f"{duration(seen.round_s)} a round"] if seen.round_s is not None else []
    if seen.working:
        times += [f"{duration(seen.silent_s)} since the last"]
        times += [f"about {duration(seen.left_s)} left"] if seen.left_s is not None else []
    return [*facts, ("time", ", ".join(times))] if times else facts
