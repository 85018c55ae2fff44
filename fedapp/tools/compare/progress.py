"""A comparison while it goes on: a bar per running cell on a terminal, plain lines in a log."""

import time
from collections.abc import Callable, Mapping

from rich.console import Console
from rich.progress import TaskID

from fedapp.core.formatting import duration
from fedapp.core.progress import Progress

EVERY_S = 60.0
"""In a log, a line says how far it is when nothing else was said for so long."""


class Board(Progress):
    """Shows cells. Rounds are the measure of the time that is left; a context manager."""

    def __init__(
        self, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(console, clock)
        self._total = self._rounds_at_first = 0
        self._began = clock()
        self._lines: dict[str, TaskID] = {}

    def began(self, total: int, done: int, rounds: int) -> None:
        """Say what begins: `total` cells, `done` of them before, `rounds` of the others to do."""
        self._total, self._rounds_at_first = total, rounds
        self._began = self._clock()
        if self.bar is not None:
            self._task = self.bar.add_task("cells", total=total, completed=done, state="", phase="")

    def show(
        self, running: Mapping[str, tuple[int, int]], done: int, failed: int, rounds_left: int
    ) -> None:
        """Say how far it is. running: name of each running cell -> its last round, its rounds."""
        state = "  ".join([*([f"{failed} failed"] if failed else []), *self._left_for(rounds_left)])
        if self.bar is None or self._task is None:
            if self._clock() - self._spoke >= EVERY_S:
                each = ", ".join(f"{name} {_place(*at)}" for name, at in running.items())
                what = "  ".join(filter(None, [f"{done} of {self._total} cells", state, each]))
                self._say(what)
            return
        self.bar.update(self._task, completed=done, state=state)
        for name in self._lines.keys() - running.keys():
            self.bar.remove_task(self._lines.pop(name))
        for name, (at, of) in running.items():
            if name not in self._lines:
                self._lines[name] = self.bar.add_task(f"  {name}", total=of, state="", phase="")
            self.bar.update(self._lines[name], completed=max(at, 0), state=_stage(at, of))

    def _left_for(self, rounds: int) -> list[str]:
        done = self._rounds_at_first - rounds
        if done <= 0 or rounds <= 0:
            return []
        return [f"about {duration((self._clock() - self._began) * rounds / done)} left"]


def _place(at: int, of: int) -> str:
    return f"{at}/{of}" if at >= 0 else _stage(at, of)


def _stage(at: int, of: int) -> str:
    """Say what has no rounds to count: before the warm-up is over, and after the last round."""
    return "warm-up" if at < 0 else "finishing" if at >= of else ""
