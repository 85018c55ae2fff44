"""One look at a run as a screen of 80 columns shows it."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedapp.ground.errors import one_line
from fedapp.ground.text import duration, percent, size
from fedapp.tools.watch.state import Watched

WIDTH = 36
"""Columns of the bar and of a curve."""
SHOWN = 5
"""Warnings shown, the latest."""
_BARS, _ASCII = "▁▂▃▄▅▆▇█", "_.-=+*%#"


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
