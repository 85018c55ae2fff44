"""`fedapp watch`: follows a run by reading its folder, from another terminal.

A terminal of 80 columns shows one screen that is drawn again; anything else gets lines. The run
itself is asked nothing, so watching cannot slow or break it.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedapp.core.errors import RunError, one_line
from fedapp.core.formatting import counted, duration, percent, size
from fedapp.core.progress import RECENT_ROUNDS, SOLUTION, Progress
from fedapp.experiment.preset_files import read_yaml
from fedapp.experiment.run_folder import Row, RunFolder, find_run, is_running
from fedapp.server.accuracy_drop import accuracy_drop_warning

WIDTH = 36
"""Columns of the bar and of a curve."""
SHOWN = 5
"""How many warnings are shown: the latest."""
_BARS, _ASCII = "▁▂▃▄▅▆▇█", "_.-=+*%#"


@dataclass(frozen=True)
class RunState:
    """The state of a run at one time.

    rounds: how many follow the warm-up. rows: of metrics.jsonl, the warm-up's first. working:
    whether a server process works on it; ended: whether it is finished. silent_s: seconds since the
    last row was written.
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
        """Number of rounds done after the warm-up; -1 until the warm-up is done."""
        return int(self.rows[-1]["round"]) if self.rows else -1

    @property
    def round_s(self) -> float | None:
        """Mean seconds of one of the latest rounds; None before the first."""
        marks = [
            row["wall_seconds"] for row in self.rows[-RECENT_ROUNDS - 1 :] if "wall_seconds" in row
        ]
        return (marks[-1] - marks[0]) / (len(marks) - 1) if len(marks) > 1 else None

    @property
    def begins(self) -> str:
        """What round 0 is called."""
        return SOLUTION if self.method == "one_round" else "warm-up"

    @property
    def left_s(self) -> float | None:
        """Estimated seconds left, from the latest rounds; None if there is no estimate."""
        if self.round_s is None or self.done >= self.rounds:
            return None
        return max(self.round_s * (self.rounds - self.done) - self.silent_s, 0.0)

    def accuracies(self, part: str) -> list[float]:
        """Return the mean accuracies on "val" or "test" images of the rounds that measured them."""
        every = (row.get(f"mean_{part}_accuracy") for row in self.rows)
        return [accuracy for accuracy in every if accuracy is not None]

    def warnings(self) -> list[str]:
        """Return a line for each skipped site and each drop of the mean accuracy, in order."""
        lines = []
        for before, row in zip([{}, *self.rows], self.rows, strict=False):
            lines += warnings_of(row, before)
        return lines


def warnings_of(row: Row, before: Row) -> list[str]:
    """Return the warnings about one round. row, before: its metrics, those of the round before."""
    skipped = row.get("skipped") or {}
    lines = [f"round {row['round']}: site {k} skipped: {reason}" for k, reason in skipped.items()]
    fall = accuracy_drop_warning(row, before)
    return [*lines, fall] if fall else lines


def run_state(run: Path) -> RunState:
    """Return the state of a run. Raises RunError if the folder holds no run."""
    if not (run / "config.yaml").is_file():
        several = (run / "cells").is_dir()
        remedy = "name a run of it, below cells/" if several else "name the folder of a run"
        raise RunError(f"{run}: {'a comparison' if several else 'no run'}: {remedy}")
    plain = read_yaml(run / "config.yaml")
    # Before the files are read: a run that finishes meanwhile must not look interrupted.
    working = is_running(run)
    rows = RunFolder(run).metrics()
    metrics = run / "metrics.jsonl"
    return RunState(
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
    """Return values as a line of at most `width` marks, from marks[0], the lowest, to marks[-1].

    If there are more values than columns, a column shows the mean of its share of them.
    """
    columns = min(len(values), width)
    cuts = [len(values) * column // columns for column in range(columns)] + [len(values)]
    shown = [fmean(values[a:b]) for a, b in pairwise(cuts)]
    low, high = min(shown, default=0.0), max(shown, default=0.0)
    scale = (len(marks) - 1) / (high - low) if high > low else 0.0
    return "".join(marks[round((value - low) * scale)] for value in shown)


def screen(seen: RunState, unicode: bool = True) -> RenderableType:
    """Return the screen for a run's state. unicode: whether the terminal shows block characters."""
    table = Table.grid(padding=(0, 2))
    table.add_column(width=11)
    table.add_column(width=WIDTH)
    table.add_column()
    done = max(seen.done, 0)
    bar = ProgressBar(total=max(seen.rounds, 1), completed=done, width=WIDTH)
    where = f"round {done} of {seen.rounds}" if seen.done >= 0 else seen.begins
    table.add_row("rounds", bar, where)
    for part, label in (("test", "test"), ("val", "validation")):
        if values := seen.accuracies(part):
            ends = f"{percent(values[-1])} % (best {percent(max(values))})"
            table.add_row(label, curve(values, WIDTH, _BARS if unicode else _ASCII), ends)
    head = Text(f"{seen.name}: {seen.method}, {counted(seen.sites, 'sites')}")
    lines: list[RenderableType] = [head, table]
    lines += [Text(f"{label:<13}{said}") for label, said in _facts(seen)]
    warnings = seen.warnings()
    if len(warnings) > SHOWN:
        lines.append(Text(f"{len(warnings)} warnings, the latest:"))
    lines += [Text(one_line(warning), style="yellow") for warning in warnings[-SHOWN:]]
    return Group(*lines)


def _facts(seen: RunState) -> list[tuple[str, str]]:
    if not seen.rows:
        return [("sites", "are being warmed up")] if seen.working else []
    last = seen.rows[-1]
    skipped = len(last.get("skipped") or {})
    late = f", {skipped} late or skipped" if skipped else ""
    sums = seen.begins == SOLUTION and not last.get("trained")
    did = "sent sums" if sums else f"{last.get('trained', 0)} trained"
    facts = [("sites", f"{did} in the last round{late}")]
    if "bytes_down" in last:
        sent = f"{size(last['bytes_down'])} to sites, {size(last['bytes_up'])} to the server"
        facts.append(("sent", sent))
    times = [f"{duration(seen.round_s)} a round"] if seen.round_s is not None else []
    if seen.working:
        times += [f"{duration(seen.silent_s)} since the last"]
        times += [f"about {duration(seen.left_s)} left"] if seen.left_s is not None else []
    return [*facts, ("time", ", ".join(times))] if times else facts


EVERY_S = 1.0
"""Seconds between two reads of the folder."""
STOPPED = 1
"""Exit code if the run is unfinished and no server process works on it."""


def watch(run: str, console: Console) -> int:
    """Follow a run until it is finished or its server process is gone; return the exit code.

    run: its name or folder; empty: the newest run. Ctrl-C ends only the watching.
    """
    folder = find_run(run)
    try:
        seen = _on_screen(folder, console) if console.is_interactive else _in_lines(folder, console)
    except KeyboardInterrupt:
        return 0
    if not seen.ended:
        at = f"after round {seen.done} of {seen.rounds}" if seen.done >= 0 else "in its warm-up"
        again = f"; continue with runtime.resume=true runtime.run_name={folder.name}"
        console.print(
            f"no server is at work on {folder}: it stopped {at}{again if seen.rows else ''}",
            soft_wrap=True,
            highlight=False,
        )
        return STOPPED
    # These import torch. While a run is going on it needs the memory itself.
    from fedapp.reports.run_end import end_block

    records = RunFolder(folder)
    print(end_block(records.read_json("summary.json") or {}, records.per_site(), folder))
    return 0


def _on_screen(folder: Path, console: Console) -> RunState:
    unicode = console.encoding.startswith("utf")
    with Live(console=console, auto_refresh=False) as live:
        for seen in _looks(folder):
            live.update(screen(seen, unicode), refresh=True)
    return seen


def _in_lines(folder: Path, console: Console) -> RunState:
    """Print the lines of the run's own log.

    The clock reads the recorded times of the rounds, so that past rounds show the time they took.
    """
    now, before = 0.0, Row()
    progress, seen = Progress(console, lambda: now), run_state(folder)
    progress.started(seen.name, seen.rounds, seen.sites, seen.begins)
    for seen in _looks(folder):
        for row in seen.rows:
            if row["round"] > before.get("round", -1):
                for warning in warnings_of(row, before):
                    progress.note(warning)
                now = row.get("wall_seconds", now)
                progress.round_done(row)
                before = row
    return seen


def _looks(folder: Path) -> Iterator[RunState]:
    """Yield the state of a run again and again, until it is finished or has no server process.

    A server locks the folder a moment after making it, so only the second time in a row without a
    server counts.
    """
    absent = 0
    while True:
        seen = run_state(folder)
        yield seen
        absent = 0 if seen.working else absent + 1
        if seen.ended or absent > 1:
            return
        time.sleep(EVERY_S)
