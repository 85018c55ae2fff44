"""Runs cells in processes of their own, several at a time, and lets nothing earned be lost.

A cell that is done is never run again, one that was cut goes on, one that fails leaves the others
alone. However the comparison ends, its processes end with it.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import rmtree

from fedapp.ground.disk import refused
from fedapp.tools.compare.board import Board
from fedapp.tools.compare.cells import Cell
from fedapp.tools.compare.earlier import can_resume
from fedapp.tools.compare.work import Driver, Job

POLL_S = 0.2
PATIENCE_S = 30.0
"""For a process to end when asked; one that runs Flower has others to end first."""

# -P: the code is this one's, whatever lies in the current folder.
COMMAND = (sys.executable, "-P", "-m", "fedapp.tools.compare.work")
_CODE = Path(__file__).resolve().parents[3]


class Runner:
    """Finishes the cells of a comparison.

    ended: called after every cell that got done. keep_models: do not remove models that nothing
    needs any more.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        board: Board,
        ended: Callable[[Cell], None],
        *,
        driver: Driver,
        keep_models: bool,
    ) -> None:
        self._cells, self._board, self._ended = cells, board, ended
        self._driver, self._keep_models = driver, keep_models
        self._running: dict[Cell, subprocess.Popen[str]] = {}
        self._rows: dict[Cell, tuple[int, int]] = {}
        self._done = {cell for cell in cells if cell.state() == "done"}
        self.failed: dict[Cell, str] = {}
        """What failed, and why: the last line of its log."""

    def todo(self) -> list[Cell]:
        """Return the cells that a process has something to do for, in order."""
        return [c for c in self._cells if c not in self._done]

    def run(self, jobs: int) -> None:
        """Run what is to do, `jobs` processes at a time; an interrupt ends them first."""
        waiting = self.todo()
        self._board.began(len(self._cells), len(self._done), self._rounds_left())
        self.tidy()
        try:
            while waiting or self._running:
                self._start(waiting, jobs)
                over = [c for c, process in self._running.items() if process.poll() is not None]
                for cell in over:
                    self._take(cell, self._running.pop(cell))
                running = {c.name: (self._rounds(c) - 1, _rounds_of(c)) for c in self._running}
                self._board.show(running, len(self._done), len(self.failed), self._rounds_left())
                if not over:
                    time.sleep(POLL_S)
        finally:
            end(list(self._running.values()))

    # --- one cell ---------------------------------------------------------------------------------

    def _start(self, waiting: list[Cell], jobs: int) -> None:
        """Start those that are ready while there is room; take out of `waiting` what is settled."""
        for cell in list(waiting):
            if len(self._running) >= jobs:
                return
            broken = [p for p in cell.parents if p in self.failed and p not in self._done]
            if broken:
                self._fail(cell, f"not run, because {broken[0].name} failed")
            elif self._done.issuperset(cell.parents):
                self._running[cell] = self._process(cell)
            else:
                continue
            waiting.remove(cell)

    def _process(self, cell: Cell) -> subprocess.Popen[str]:
        if note := make_ready(cell):
            self._board.note(note)
        job = Job.of(cell, self._driver)
        env = {**os.environ, "PYTHONUNBUFFERED": "1"}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_CODE), env.get("PYTHONPATH")]))
        env.pop("FEDAPP_SITES", None)  # what Flower's sites keep to themselves lies in the cell too
        try:
            cell.log.parent.mkdir(parents=True, exist_ok=True)
            with cell.log.open("ab") as log:
                process = subprocess.Popen(
                    COMMAND,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    text=True,
                    encoding="utf-8",
                    env=env,
                    start_new_session=True,  # Ctrl-C is ours to handle
                )
        except OSError as error:
            raise refused(cell.log, error) from error
        assert process.stdin is not None
        try:
            process.stdin.write(job.to_line())
            process.stdin.flush()  # and stays open: when it closes, the process ends
        except BrokenPipeError:
            pass  # it has ended; its log says why
        return process

    def _take(self, cell: Cell, process: subprocess.Popen[str]) -> None:
        """Take in the end of a cell's process."""
        _close(process)
        if process.returncode:
            self._fail(cell, _reason(cell, process.returncode))
        if cell.state() == "done":  # it may have failed afterwards
            self._done.add(cell)
            self.tidy([cell, *cell.parents])
            self._ended(cell)

    def _fail(self, cell: Cell, reason: str) -> None:
        self.failed[cell] = reason
        self._board.note(f"{cell.name}: failed")  # why is said once, at the end

    # --- models, which fill a disk ----------------------------------------------------------------

    def tidy(self, cells: Sequence[Cell] = ()) -> None:
        """Remove the models of these cells, or of all, that are done and that nothing needs."""
        if self._keep_models:
            return
        needed = {p for cell in self._cells if cell not in self._done for p in cell.parents}
        for cell in cells or self._cells:
            if cell in self._done and cell not in needed:
                remove_models(cell)

    # --- how far ----------------------------------------------------------------------------------

    def _rounds_left(self) -> int:
        """Return the rounds, warm-ups included, of all cells that are neither done nor failed."""
        left = [c for c in self._cells if c not in self.failed and c not in self._done]
        return sum(_rounds_of(c) + 1 - self._rounds(c) for c in left if not c.parents)

    def _rounds(self, cell: Cell) -> int:
        """Return how many rounds a cell has recorded, its warm-up included."""
        path = cell.folder / "metrics.jsonl"
        try:
            size = path.stat().st_size
            if self._rows.get(cell, (-1, 0))[0] != size:  # an empty file is news too
                self._rows[cell] = (size, path.read_bytes().count(b"\n"))
        except FileNotFoundError:
            return 0
        return self._rows[cell][1]


def make_ready(cell: Cell) -> str:
    """Remove what a cell cannot go on from; return why, where a person should know; else empty."""
    if cell.state() == "begun" and not cell.parents and not can_resume(cell):
        rmtree(cell.folder)
        return f"{cell.name}: its checkpoint is damaged; it starts again"
    if cell.state() == "new" and cell.folder.exists():  # cut while it was being made
        rmtree(cell.folder)
    return ""


def remove_models(cell: Cell) -> None:
    """Remove the models of a cell that nothing needs any more."""
    rmtree(cell.folder / "pool", ignore_errors=True)
    rmtree(cell.folder / "sites", ignore_errors=True)


def end(processes: Sequence[subprocess.Popen[str]]) -> None:
    """End processes: ask, wait, then kill. Once, for a second time would cut their cleaning up."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + PATIENCE_S
    for process in processes:
        try:
            process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _close(process)


def _close(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    try:
        process.stdin.close()
    except BrokenPipeError:
        pass


def _rounds_of(cell: Cell) -> int:
    return cell.experiment.rounds.num_rounds


def _reason(cell: Cell, code: int) -> str:
    """Return why a process ended: its last error, else its last words; or what signal ended it."""
    if code < 0:
        memory = ", which may be for want of memory: lower --jobs" if code == -9 else ""
        return f"ended by signal {-code}{memory}"
    text = cell.log.read_text(encoding="utf-8", errors="replace")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).split("\n")
    said = [line.strip() for line in lines if line.strip()] or [f"exit code {code}"]
    return next((line for line in reversed(said) if line.startswith("error: ")), said[-1])
