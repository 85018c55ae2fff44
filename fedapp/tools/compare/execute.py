"""Runs the cells of a grid, several at a time, and collects their results.

Each cell runs in a process of its own, and no finished work is lost: a cell that is done is never
run again, an interrupted one goes on, and one that fails does not stop the others. However the
comparison ends, its processes end with it.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import TaskID

from fedapp.core.devices import pick_device
from fedapp.core.disk import write_error
from fedapp.core.errors import ConfigError, RunError
from fedapp.core.formatting import counted, duration, percent, size
from fedapp.core.processes import signals_as_exit
from fedapp.core.progress import Progress
from fedapp.experiment.run_folder import COMPARISON_LOCK, locked
from fedapp.reports.comparison.record import VALIDATION
from fedapp.simulation import flower_local
from fedapp.simulation.resources import USABLE_SHARE, free_ram, measured, start_measuring
from fedapp.tools.compare.cell_process import Driver, Job, do
from fedapp.tools.compare.cells import Cell, build_cells, check_cells, runs_of
from fedapp.tools.compare.collect import Collection
from fedapp.tools.compare.grid import Grid

LOG_LINE_S = 60.0
"""Seconds without output after which a log gets a line of progress."""


class ComparisonProgress(Progress):
    """Shows the progress of cells: a bar for each on a terminal, plain lines in a log.

    It is a context manager. The time left is estimated from rounds done.
    """

    def __init__(
        self, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(console, clock)
        self._total = self._rounds_at_first = 0
        self._began = clock()
        self._lines: dict[str, TaskID] = {}

    def began(self, total: int, done: int, rounds: int) -> None:
        """Note the start: `total` cells, `done` of them earlier, `rounds` to do in the others."""
        self._total, self._rounds_at_first = total, rounds
        self._began = self._clock()
        if self.bar is not None:
            self._task = self.bar.add_task("cells", total=total, completed=done, state="", phase="")

    def show(
        self, running: Mapping[str, tuple[int, int]], done: int, failed: int, rounds_left: int
    ) -> None:
        """Show the progress. running: for each running cell's name, its last round and all."""
        state = "  ".join([*([f"{failed} failed"] if failed else []), *self._left_for(rounds_left)])
        if self.bar is None or self._task is None:
            if self._clock() - self._spoke >= LOG_LINE_S:
                each = ", ".join(f"{name} {_place(*at)}" for name, at in running.items())
                what = "  ".join(
                    filter(None, [f"{done} of {counted(self._total, 'cells')}", state, each])
                )
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
    """Name the stage before the warm-up is done and after the last round; else an empty text."""
    return "warm-up" if at < 0 else "finishing" if at >= of else ""


INTERRUPTED = 130
"""Exit code after Ctrl-C."""
POLL_S = 0.2
"""Seconds between two looks at the processes."""
PATIENCE_S = 30.0
"""Seconds for a process to end by itself. One that runs Flower has to end others first."""

# -P: import this code, whatever is in the current folder.
COMMAND = (sys.executable, "-P", "-m", "fedapp.tools.compare.cell_process")
_CODE = Path(__file__).resolve().parents[3]


def execute(
    grid: Grid,
    out: Path,
    jobs: int | None,
    driver: Driver,
    *,
    keep_models: bool = False,
) -> tuple[int, Collection, list[Path]]:
    """Run the cells of a grid that are not done; return the exit code, the results, their files.

    jobs: processes at a time; None: one for each core, as far as memory allows. keep_models: keep
    the models of finished cells, which otherwise are removed. The exit code is 0, 1 if a cell
    failed, or `INTERRUPTED` after Ctrl-C.

    Raises ConfigError and RunError before anything is started, since every cell is built first.
    """
    every = build_cells(grid, out)
    cells = runs_of(every)
    for device in {cell.experiment.runtime.device for cell in cells}:
        pick_device(device)
    _check_driver(driver, jobs)
    with (
        locked(out / COMPARISON_LOCK, _busy(out)),
        signals_as_exit(interrupt=False),
        ComparisonProgress() as board,
    ):
        for warning in check_cells(cells):
            board.note(f"warning: {warning}")
        collection = Collection(grid, every, out)
        files = collection.write()

        def ended(cell: Cell) -> None:
            collection.write()
            board.note(f"{cell.name}: {_outcome(collection.result(cell))}")

        runner = Runner(cells, board, ended, driver=driver, keep_models=keep_models)
        todo = runner.todo()
        done = collection.done
        board.note(f"{grid.title}: {counted(len(cells), 'cells')}, {done} done before, in {out}")
        try:
            runner.run(jobs or _jobs(todo, driver, board))
        except KeyboardInterrupt:
            board.note(
                f"interrupted: {collection.done} of {len(cells)} cells are done; the same command "
                "continues"
            )
            _say_failed(runner.failed)
            return INTERRUPTED, collection, files
        for fault in collection.split_faults():
            board.note(f"warning: {fault}")
    _say_failed(runner.failed)
    return (1 if runner.failed else 0), collection, files


def _say_failed(failed: Mapping[Cell, str]) -> None:
    """Print each reason once, with the first cell that failed for it."""
    alike: dict[str, list[Cell]] = {}
    for cell, reason in failed.items():
        alike.setdefault(reason, []).append(cell)
    for reason, (cell, *more) in alike.items():
        others = f" and {len(more)} more" if more else ""
        print(f"failed: {cell.name}{others}: {reason}\n  its log: {cell.log}", file=sys.stderr)


def execute_here(grid: Grid, out: Path) -> Collection:
    """Run the cells that are not done one by one in this process; return the results.

    This is for data and code that only this process has. Models are removed at the end. Raises what
    `execute` raises, and the error of a cell that fails; calling it again goes on from there.
    """
    every = build_cells(grid, out)
    cells = runs_of(every)
    with locked(out / COMPARISON_LOCK, _busy(out)):
        for warning in check_cells(cells):
            print(f"warning: {warning}")
        collection = Collection(grid, every, out)
        if kept := sum(cell.state() == "done" for cell in cells):
            # Cells are compared by settings and data; a change in a user's own code goes unnoticed.
            print(
                f"{kept} of {len(cells)} cells were run before and are kept: if you changed a "
                "network or method of your own since, give another folder"
            )
        for cell in cells:
            if cell.state() != "done":
                if note := cell.make_ready():
                    print(note)
                cell.log.parent.mkdir(parents=True, exist_ok=True)
                with cell.log.open("a", encoding="utf-8") as log, redirect_stdout(log):
                    do(Job.of(cell, "loopback"))
                collection.write()
                print(f"{cell.name}: {_outcome(collection.result(cell))}")
        for cell in cells:
            cell.remove_models()
        collection.write()
    return collection


def _busy(out: Path) -> str:
    return f"{out}: another comparison is at work there: wait for it, or give another --out"


def _check_driver(driver: Driver, jobs: int | None) -> None:
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs {jobs}: must be at least 1")
    if driver == "loopback":
        return
    if jobs not in {None, 1}:
        raise ConfigError(
            f"--jobs {jobs}: must be 1 with --driver flower: it simulates several sites at a time"
        )
    app = Path(flower_local.__file__).resolve().parents[2]
    if not (app / "server_app").is_dir():
        raise RunError(f"{app}: holds no Flower app; run this from a checkout of the project")


def _jobs(todo: Sequence[Cell], driver: Driver, board: ComparisonProgress) -> int:
    """Return how many cells to run at a time: one for each core, as far as memory allows.

    The memory that a cell needs is measured, once for each data preset.
    """
    runtimes = [cell.experiment.runtime for cell in todo]
    processes = max((max(runtime.workers, 1) for runtime in runtimes), default=1)
    threads = processes * max((runtime.threads for runtime in runtimes), default=1)
    number = min(len(os.sched_getaffinity(0)) // threads, len(todo))
    if driver == "flower" or number <= 1:
        return 1
    firsts = {cell.preset: cell for cell in reversed(todo)}
    needs = [measured(start_measuring(cell.preset, cell.overrides)) for cell in firsts.values()]
    known = [need for need in needs if need is not None]
    if not known:  # measuring failed; the cells will fail with the reason
        return number
    ram = processes * max(need.ram for need in known)
    limits = [number, int(free_ram() * USABLE_SHARE // ram)]
    # All cells use the first GPU.
    limits += [
        int(need.gpus[0] * USABLE_SHARE // (processes * need.gpu)) for need in known if need.gpus
    ]
    number = max(min(limits), 1)
    board.note(f"{counted(number, 'cells')} at a time, each with up to {size(ram)}")
    return number


def _outcome(result: Mapping[str, Any]) -> str:
    accuracy, spent = percent(result["selected_test_accuracy"]), duration(result["wall_seconds"])
    which = "selected by" if result["selected_by"] == VALIDATION else "after the"
    return f"{accuracy} % {which} {result['selected_by']}, {spent}"


class Runner:
    """Runs the unfinished cells of a comparison.

    board: shows progress. ended: called after each cell that was finished. keep_models: do not
    remove models that no other cell needs any more.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        board: ComparisonProgress,
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
        """The cells that failed, each with the reason from its log."""

    def todo(self) -> list[Cell]:
        """Return the cells that are not done, in order."""
        return [c for c in self._cells if c not in self._done]

    def run(self, jobs: int) -> None:
        """Run them, `jobs` processes at a time. An exception, as by Ctrl-C, ends the processes."""
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
        """Start waiting cells, up to `jobs` processes.

        What is started, or cannot run, is removed from `waiting`. A cell whose parents are not
        done yet goes on waiting.
        """
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
        if note := cell.make_ready():
            self._board.note(note)
        job = Job.of(cell, self._driver)
        env = {**os.environ, "PYTHONUNBUFFERED": "1"}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_CODE), env.get("PYTHONPATH")]))
        env.pop(
            "FEDAPP_SITES", None
        )  # private state of Flower's sites belongs in the cell's folder
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
            raise write_error(cell.log, error) from error
        assert process.stdin is not None
        try:
            process.stdin.write(job.to_line())
            process.stdin.flush()  # it stays open, because the process ends when it closes
        except BrokenPipeError:
            pass  # the process has ended, and its log says why
        return process

    def _take(self, cell: Cell, process: subprocess.Popen[str]) -> None:
        """Handle the end of a cell's process."""
        _close(process)
        if process.returncode:
            self._fail(cell, _reason(cell, process.returncode))
        if cell.state() == "done":  # even if the process failed after writing the result
            self._done.add(cell)
            self.tidy([cell, *cell.parents])
            self._ended(cell)

    def _fail(self, cell: Cell, reason: str) -> None:
        self.failed[cell] = reason
        self._board.note(f"{cell.name}: failed")  # `_say_failed` prints why

    # --- models, which fill the disk --------------------------------------------------------------

    def tidy(self, cells: Sequence[Cell] = ()) -> None:
        """Remove models of these cells (none: of all) if they are done and no other needs them."""
        if self._keep_models:
            return
        needed = {p for cell in self._cells if cell not in self._done for p in cell.parents}
        for cell in cells or self._cells:
            if cell in self._done and cell not in needed:
                cell.remove_models()

    # --- progress ---------------------------------------------------------------------------------

    def _rounds_left(self) -> int:
        """Return how many rounds, warm-ups included, the unfinished cells still have to do."""
        left = [c for c in self._cells if c not in self.failed and c not in self._done]
        return sum(_rounds_of(c) + 1 - self._rounds(c) for c in left if not c.parents)

    def _rounds(self, cell: Cell) -> int:
        """Return how many rounds a cell has recorded, its warm-up included.

        The file is counted again only when its length has changed.
        """
        path = cell.folder / "metrics.jsonl"
        try:
            length = path.stat().st_size
            if self._rows.get(cell, (-1, 0))[0] != length:
                self._rows[cell] = (length, path.read_bytes().count(b"\n"))
        except FileNotFoundError:
            return 0
        return self._rows[cell][1]


def end(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Terminate processes, wait, then kill what is left.

    They are asked once only: a second signal would interrupt their own cleaning up.
    """
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
    """Return why a cell's process failed: the signal, else its last error, else its last line."""
    if code < 0:
        memory = ", which may be for want of memory: lower --jobs" if code == -9 else ""
        return f"ended by signal {-code}{memory}"
    text = cell.log.read_text(encoding="utf-8", errors="replace")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).split("\n")
    said = [line.strip() for line in lines if line.strip()] or [f"exit code {code}"]
    return next((line for line in reversed(said) if line.startswith("error: ")), said[-1])
