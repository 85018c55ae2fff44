"""The paper's Fashion-MNIST setting for several methods, as a comparison that stops in time."""

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from bench.record import Row
from fedapp.experiment.presetfiles import Scalar
from fedapp.ground.errors import RunError
from fedapp.ground.text import percent
from fedapp.results.comparison.paper import TABLES, PaperNumbers, read_printed
from fedapp.results.comparison.record import BEST, FINAL, SELECTED, CellResult, read_comparison
from fedapp.tools.compare.execute import INTERRUPTED, execute
from fedapp.tools.compare.grid import read_grid

GRID = Path(__file__).with_name("paper.yaml")
TO_END_S = 20.0
"""For the processes to end before the deadline."""


def runs(out: Path, given: Mapping[str, Scalar], deadline: float | None) -> list[Row] | None:
    """Run the grid's cells, several at a time; return `table`, None where time was over before.

    given: overrides of all cells. What is cut goes on from its last whole round. Raises RunError
    where a cell failed.
    """
    try:
        with _until(None if deadline is None else deadline - TO_END_S):
            code, _, _ = execute(read_grid(str(GRID), given), out / "paper", None, "loopback")
            if code == INTERRUPTED:  # `execute` keeps who interrupted to itself
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        if deadline is None or time.monotonic() < deadline - TO_END_S:
            raise  # a person's
        return None
    if code:
        raise RunError(f"{out / 'paper'}: a run failed, see above; the same command goes on")
    return table(out)


def table(out: Path, numbers: Path | None = None) -> list[Row]:
    """Return a row for each method that is done, beside the paper's number of the same cell.

    numbers: a file of the form of conf/paper_tables.csv; None: that one. Raises RunError where
    nothing has run yet.
    """
    comparison = read_comparison(out / "paper")
    printed = PaperNumbers(comparison, read_printed(numbers or TABLES))
    done = (comparison.of(s, m) for s in comparison.settings for m in comparison.methods)
    return [_row(cell, printed) for cells in done for cell in cells.values()]


def _row(cell: CellResult, printed: PaperNumbers) -> Row:
    numbers = cell.numbers
    best, paper = numbers[BEST], printed.find(cell.setting, cell.method)
    difference, seconds = None, numbers["wall_seconds"]
    if best is not None and paper is not None:
        difference = round(100 * best - float(paper), 2)
    return {
        "method": cell.method,
        "best round, %": percent(best),
        "the paper, %": paper,
        "difference": difference,
        "final round, %": percent(numbers[FINAL]),
        "best by validation, %": percent(numbers[SELECTED]),
        "rounds": numbers["rounds"],
        "minutes": None if seconds is None else round(seconds / 60, 2),
    }


@contextmanager
def _until(deadline: float | None) -> Iterator[None]:
    """Raise KeyboardInterrupt inside when the time is over; None: never."""

    def over(_: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if deadline is None:
        yield
        return
    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, max(deadline - time.monotonic(), 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
