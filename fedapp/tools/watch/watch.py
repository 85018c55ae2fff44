"""`fedapp watch`: a run from its folder, in another terminal; the run itself is left alone."""

import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.live import Live

from fedapp.core.progress import Progress
from fedapp.experiment.run_folder import Row, RunFolder, find_run
from fedapp.tools.watch.view import Watched, look, screen, warnings_of

EVERY_S = 1.0
"""Seconds between two looks."""
STOPPED = 1
"""Exit code where the run is not over and no server is at it."""


def watch(run: str, paper: bool, console: Console) -> int:
    """Follow a run until it is over or its server is gone; return the exit code.

    run: its name or folder; empty: the newest. paper: end in the paper's terms. A terminal shows
    one screen, anything else gets a line for each round. Ctrl-C ends the watching alone.
    """
    folder = find_run(run)
    try:
        seen = _on_screen(folder, console) if console.is_interactive else _in_lines(folder, console)
    except KeyboardInterrupt:
        return 0
    if not seen.ended:
        at = f"after round {seen.done} of {seen.rounds}" if seen.done >= 0 else "in its warm-up"
        again = f"; go on with runtime.resume=true runtime.run_name={folder.name}"
        console.print(
            f"no server is at work on {folder}: it stopped {at}{again if seen.rows else ''}",
            soft_wrap=True,
            highlight=False,
        )
        return STOPPED
    # torch comes with these, and a run that goes on needs the memory more.
    from fedapp.reports.run_end import end_block, paper_block

    records = RunFolder(folder)
    words = paper_block if paper else end_block
    print(words(records.read_json("summary.json") or {}, records.per_site(), folder))
    return 0


def _on_screen(folder: Path, console: Console) -> Watched:
    unicode = console.encoding.startswith("utf")
    with Live(console=console, auto_refresh=False) as live:
        for seen in _looks(folder):
            live.update(screen(seen, unicode), refresh=True)
    return seen


def _in_lines(folder: Path, console: Console) -> Watched:
    """Print what the run's own log has; the clock is the rows', so past rounds have their time."""
    now, before = 0.0, Row()
    progress, seen = Progress(console, lambda: now), look(folder)
    progress.started(seen.name, seen.rounds, seen.sites)
    for seen in _looks(folder):
        for row in seen.rows:
            if row["round"] > before.get("round", -1):
                for warning in warnings_of(row, before):
                    progress.note(warning)
                now = row.get("wall_seconds", now)
                progress.round_done(row)
                before = row
    return seen


def _looks(folder: Path) -> Iterator[Watched]:
    """Yield looks at a run, the last when it is over or has no server.

    A server takes the folder a moment after it made it, so its absence counts from the second look.
    """
    absent = 0
    while True:
        seen = look(folder)
        yield seen
        absent = 0 if seen.working else absent + 1
        if seen.ended or absent > 1:
            return
        time.sleep(EVERY_S)
