"""Progress of a run or of other long work: a bar on a terminal, plain lines in a log."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from types import TracebackType
from typing import Any, Self, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar
from rich.text import Text

from fedapp.core.formatting import counted, duration, percent

PHASE_EVERY_S = 30.0
"""Seconds without any other line in a log after which a phase reports how far it is."""
SLOW_AFTER_S = 5.0
"""Seconds after which slow work is announced."""
SOLUTION = "solution"
"""Name of round 0 where sites send sums, of which the server makes the model: none need train."""
RECENT_ROUNDS = 10
"""Number of the last rounds whose mean duration predicts the time that is left."""


class Progress:
    """Shows the progress of a run; use it as a context manager, so that the terminal is restored.

    console: where to write; None: standard output. clock: returns seconds and never goes back.
    bar: the bar on a terminal; None in a log.
    """

    def __init__(
        self, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console or Console()
        self._clock = clock
        self._rounds = 0
        self._round_began = self._spoke = clock()
        self._durations: deque[float] = deque(maxlen=RECENT_ROUNDS)
        self.bar: Bar | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if self._console.is_interactive:
            self.bar = Bar(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[state]}  {task.fields[phase]}", markup=False),
                console=self._console,
            )
            self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def started(self, title: str, rounds: int, sites: int, begins: str = "warm-up") -> None:
        """Announce a run of `rounds` rounds after round 0; begins: what round 0 is called."""
        self._rounds, self._begins = rounds, begins
        self._round_began = self._clock()
        if self.bar is None:
            self._say(f"{title}: {counted(sites, 'sites')}, {counted(rounds, 'rounds')}")
        else:
            self._task = self.bar.add_task(
                _one_line(title), total=rounds, state=counted(sites, "sites"), phase=""
            )

    def phase(self, text: str, done: int, total: int) -> None:
        """Report how far a phase of the round is: `done` of `total` sites have answered."""
        if self.bar is not None and self._task is not None:
            self.bar.update(self._task, phase=_one_line(f"{text} {done}/{total}"))
        elif self._clock() - self._spoke >= PHASE_EVERY_S:
            self._say(f"{text}: {done} of {counted(total, 'sites')}")

    def round_done(self, row: dict[str, Any]) -> None:
        """Report the results of a round; row: its row of `metrics.jsonl`."""
        number = row["round"]
        now = self._clock()
        if number > 0:  # round 0 (the warm-up) does not predict how long the others take
            self._durations.append(now - self._round_began)
        self._round_began = now
        accuracy = f"accuracy {percent(row.get('mean_test_accuracy'))} %"
        error = row.get("pseudo_label_error")
        wrong = [] if error is None else [f"wrong pseudo-labels {percent(error)} %"]
        left = self._left(number)
        if self.bar is not None and self._task is not None:
            state = "  ".join([accuracy, *wrong, *left])
            self.bar.update(self._task, completed=number, state=state, phase="")
            return
        where = (
            f"round {number:>{len(str(self._rounds))}}/{self._rounds}" if number else self._begins
        )
        worst = percent(row.get("worst_decile_accuracy"))
        skipped = [f"{len(row['skipped'])} skipped"] if row.get("skipped") else []
        did = f"{counted(row.get('trained', 0), 'sites')} trained"
        if self._begins == SOLUTION and not row.get("trained") and not skipped:
            did = "sites sent sums"
        counts = [did, *skipped]
        self._say(
            "  ".join([where, f"{accuracy} (worst tenth of sites {worst})", *wrong, *counts, *left])
        )

    def note(self, text: str) -> None:
        """Print something that deserves attention, such as a site that was skipped and why."""
        self._say(text)

    def _left(self, number: int) -> list[str]:
        if not self._durations or number >= self._rounds:
            return []
        mean = sum(self._durations) / len(self._durations)
        return [f"{duration(mean * (self._rounds - number))} left"]

    def _say(self, text: str) -> None:
        """Print one line without markup; on a terminal it appears above the bar."""
        self._spoke = self._clock()
        line = _one_line(text)
        # A name that the terminal's encoding cannot show must not end the run.
        line = line.encode(self._console.encoding, "replace").decode(self._console.encoding)
        self._console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)
        self._console.file.flush()


@contextmanager
def slow_work_notice(
    what: str, stream: TextIO | None = None, after_s: float = SLOW_AFTER_S
) -> Iterator[None]:
    """Print what is being done if it takes longer than `after_s` seconds, then every 30 s.

    stream: where to write; None: standard error.
    """
    began, over = time.monotonic(), Event()

    def tell() -> None:
        wait = after_s
        while not over.wait(wait):
            line = f"{_one_line(what)}: {duration(time.monotonic() - began)} so far"
            print(line, file=stream or sys.stderr, flush=True)
            wait = PHASE_EVERY_S

    teller = Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


class _Rate(ProgressColumn):
    """A column with the current speed in images a second."""

    def render(self, task: Task) -> Text:
        """Return the text; it is empty until a speed has been measured."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f} a second")


@contextmanager
def image_progress(what: str, images: int) -> Iterator[Callable[[int], None]]:
    """Show a bar for work on many images; yield a function to call with how many more are done.

    The bar is on standard error, since the results may go to standard output.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=images)
        yield lambda more: bar.advance(task, more)


def _one_line(text: str) -> str:
    """Replace control characters by spaces: a reason may come from another machine."""
    return "".join(c if c.isprintable() else " " for c in text)
