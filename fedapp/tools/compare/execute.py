"""Carries out a grid: its cells run in one folder, several at a time, and are collected."""

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any

from filelock import FileLock, Timeout

from fedapp.drivers import flower_local
from fedapp.drivers.need import SHARE, free_ram, measured, start_measuring
from fedapp.experiment.runfolder import COMPARISON, LOOK_S
from fedapp.ground.devices import pick_device
from fedapp.ground.disk import refused
from fedapp.ground.errors import ConfigError, RunError
from fedapp.ground.extras import needs
from fedapp.ground.text import duration, percent, size
from fedapp.results.comparison.record import VALIDATION
from fedapp.tools.compare.board import Board
from fedapp.tools.compare.cells import Cell, build_cells, runs_of
from fedapp.tools.compare.collect import Collection
from fedapp.tools.compare.earlier import check_cells
from fedapp.tools.compare.grid import Grid
from fedapp.tools.compare.runner import Runner, make_ready, remove_models
from fedapp.tools.compare.work import Driver, Job, do

INTERRUPTED = 130
"""Exit code of what Ctrl-C ended."""


def execute(
    grid: Grid,
    out: Path,
    jobs: int | None,
    driver: Driver,
    *,
    keep_models: bool = False,
) -> tuple[int, Collection, list[Path]]:
    """Run a grid's cells, those that are not done; return exit code, what came out, its files.

    jobs: processes at a time; None: one a core, as memory allows. The code
    is 0, 1 where a cell failed, `INTERRUPTED` after Ctrl-C.

    Raises ConfigError and RunError before anything is started: every cell is built and checked.
    """
    every = build_cells(grid, out)
    cells = runs_of(every)
    for device in {cell.experiment.runtime.device for cell in cells}:
        pick_device(device)
    _check_driver(driver, jobs)
    with _alone(out), _signals_as_exit(), Board() as board:
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
        number = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
        board.note(f"{grid.title}: {number}, {done} done before, in {out}")
        try:
            runner.run(jobs or _jobs(todo, driver, board))
        except KeyboardInterrupt:
            board.note(
                f"interrupted: {collection.done} of {len(cells)} cells are done; the same command "
                "goes on"
            )
            _say_failed(runner.failed)
            return INTERRUPTED, collection, files
        for fault in collection.split_faults():
            board.note(f"warning: {fault}")
    _say_failed(runner.failed)
    return (1 if runner.failed else 0), collection, files


def _say_failed(failed: Mapping[Cell, str]) -> None:
    """Say each reason once, with the first cell that failed for it."""
    alike: dict[str, list[Cell]] = {}
    for cell, reason in failed.items():
        alike.setdefault(reason, []).append(cell)
    for reason, (cell, *more) in alike.items():
        others = f" and {len(more)} more" if more else ""
        print(f"failed: {cell.name}{others}: {reason}\n  its log: {cell.log}", file=sys.stderr)


def execute_here(grid: Grid, out: Path) -> Collection:
    """Run a grid's cells that are not done one by one in this process; return what came out.

    For data and code that no other process has. Models are removed at the end. Raises as `execute`
    does, and with the error of a cell that fails; the same call goes on after it.
    """
    every = build_cells(grid, out)
    cells = runs_of(every)
    with _alone(out):
        for warning in check_cells(cells):
            print(f"warning: {warning}")
        collection = Collection(grid, every, out)
        if kept := sum(cell.state() == "done" for cell in cells):
            # By settings and data: nobody sees that a function of one's own is another now.
            print(
                f"{kept} of {len(cells)} cells were run before and are kept: if you changed a "
                "network or method of your own since, give another folder"
            )
        for cell in cells:
            if cell.state() != "done":
                if note := make_ready(cell):
                    print(note)
                cell.log.parent.mkdir(parents=True, exist_ok=True)
                with cell.log.open("a", encoding="utf-8") as log, redirect_stdout(log):
                    do(Job.of(cell, "loopback"))
                collection.write()
                print(f"{cell.name}: {_outcome(collection.result(cell))}")
        for cell in cells:
            remove_models(cell)
        collection.write()
    return collection


def _check_driver(driver: Driver, jobs: int | None) -> None:
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs {jobs}: must be at least 1")
    if driver == "loopback":
        return
    if jobs not in {None, 1}:
        raise ConfigError(
            f"--jobs {jobs}: must be 1 with --driver flower: it simulates several sites at a time"
        )
    needs("app", "flwr")
    app = Path(flower_local.__file__).resolve().parents[2]
    if not (app / "server_app").is_dir():
        raise RunError(f"{app}: holds no Flower app; run this from a checkout of the project")


def _jobs(todo: Sequence[Cell], driver: Driver, board: Board) -> int:
    """Return how many cells at a time: a core each, as long as memory for them is free.

    What one takes is measured, once for every data preset.
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
    if not known:  # the cells will say why
        return number
    ram = processes * max(need.ram for need in known)
    limits = [number, int(free_ram() * SHARE // ram)]
    # All of them use the first GPU.
    limits += [int(need.gpus[0] * SHARE // (processes * need.gpu)) for need in known if need.gpus]
    number = max(min(limits), 1)
    board.note(f"{number} cells at a time, each with up to {size(ram)}")
    return number


def _outcome(result: Mapping[str, Any]) -> str:
    accuracy, spent = percent(result["selected_test_accuracy"]), duration(result["wall_seconds"])
    which = "selected by" if result["selected_by"] == VALIDATION else "after the"
    return f"{accuracy} % {which} {result['selected_by']}, {spent}"


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Let one comparison at a time work in a folder."""
    lock = FileLock(out / COMPARISON)
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=LOOK_S)
    except Timeout as error:
        raise RunError(
            f"{out}: another comparison is at work there: wait for it, or give another --out"
        ) from error
    except OSError as error:
        raise refused(out / COMPARISON, error) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _signals_as_exit() -> Iterator[None]:
    """Turn the signals that end a program into SystemExit, so that the processes are ended."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {n: signal.signal(n, leave) for n in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
