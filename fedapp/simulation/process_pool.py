"""The transport of a run in several processes: each process takes the next task when it is free.

The numbers are those of a single process to the bit: a task holds all that its answer depends on,
and a site keeps its state in its folder, whichever process works for it. Processes on one GPU share
its memory; while one of them prepares its next step, the GPU computes for another.
"""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import TracebackType
from typing import Self

from fedapp.core.errors import ConfigError, FedAppError, RunError
from fedapp.core.process_tuning import tune_own_process
from fedapp.data.in_memory import in_memory
from fedapp.experiment.experiment import Experiment
from fedapp.protocol.codec import decode_request, encode
from fedapp.protocol.messages import Incoming, Outgoing, Task
from fedapp.protocol.store import ModelStore
from fedapp.server.phases import Fetch
from fedapp.simulation.in_process import Loopback, carried
from fedapp.site.federation import Keeps, LoadedSites, federation_of
from fedapp.site.site import SiteClient

PATIENCE_S = 5.0
"""Seconds to wait for a process to end when there is no more work."""


@dataclass(frozen=True)
class Workplace:
    """What a process needs to open any site: the run's settings and folders."""

    experiment: Experiment
    pool: Path
    sites: Path
    keeps: Keeps | None

    def open(self, number: int, store: ModelStore) -> SiteClient:
        """Open a site on the server's pool, as another process left it."""
        return federation_of(self.experiment).site(
            number,
            self.experiment,
            store,
            self.sites / f"site-{number}",
            shares_pool=True,
            keeps_scores=True,
            keeps=self.keeps,
        )


class ProcessPool(Loopback):
    """Carries messages to `number` processes; a context manager, at whose end they end.

    number: at least 1. Raises ConfigError for data that only this process has.
    """

    def __init__(
        self, federation: LoadedSites, store: ModelStore, place: Workplace, number: int
    ) -> None:
        if in_memory(place.experiment.data.name):
            raise ConfigError(
                f"runtime.workers = {number}: other processes have no data that was given in "
                "memory: set it to 0"
            )
        super().__init__(place.experiment, federation, store, place.sites, keeps=place.keeps)
        self._workers = [_Worker(place) for _ in range(number)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._workers:
            worker.leave(at_once=error is not None)
        for worker in self._workers:
            worker.end()

    def exchange(
        self, outbox: Sequence[Outgoing], fetch: Fetch, deadline_s: float
    ) -> Iterable[tuple[int, Incoming]]:
        """Give each free process the next task, and yield the answers as they come.

        All answers are waited for, as in `Loopback`.
        """
        waiting = deque(outgoing.task for outgoing in outbox)
        free, busy = list(self._workers), dict[Connection, tuple[_Worker, int]]()
        while waiting or busy:
            while waiting and free:
                worker, task = free.pop(), waiting.popleft()
                worker.give(task)
                busy[worker.line] = worker, task.site
            for line in wait(list(busy)):
                assert isinstance(line, Connection)
                worker, site = busy.pop(line)
                answer = worker.answer()
                free.append(worker)
                yield site, answer


class _Worker:
    """A process that does one task after the other. line: the connection to it."""

    def __init__(self, place: Workplace) -> None:
        spawn = multiprocessing.get_context("spawn")  # a forked process cannot use a GPU
        self.line, theirs = spawn.Pipe()
        # A daemon ends with this process; where that is killed, it ends itself (`_work`).
        self._process: SpawnProcess = spawn.Process(target=_work, args=(theirs, place), daemon=True)
        self._process.start()
        theirs.close()

    def give(self, task: Task) -> None:
        """Send a task to the process. Raises RunError if the process has ended."""
        try:
            self.line.send(encode(task))
        except OSError:
            raise self._ended() from None

    def answer(self) -> Incoming:
        """Wait for the answer. Raises the process's FedAppError, and RunError if it has ended."""
        try:
            answer = self.line.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        if isinstance(answer, FedAppError):
            raise answer
        assert isinstance(answer, Incoming)
        return answer

    def leave(self, at_once: bool) -> None:
        """Tell the process that there are no more tasks. at_once: do not finish the last one."""
        self.line.close()
        if at_once:
            self._process.terminate()

    def end(self) -> None:
        """Wait for the process to end; after `PATIENCE_S` seconds, end it."""
        self._process.join(PATIENCE_S)
        self._process.terminate()
        self._process.join()

    def _ended(self) -> RunError:
        self._process.join(PATIENCE_S)
        code = self._process.exitcode
        why = ", which may be for want of memory" if code == -signal.SIGKILL else ""
        return RunError(
            f"a process that worked for the sites ended (exit code {code}{why}): lower "
            "runtime.workers and resume the run"
        )


def _work(line: Connection, place: Workplace) -> None:
    """Do tasks until the parent closes the connection."""
    tune_own_process()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    store, sites = ModelStore(place.pool), dict[int, SiteClient]()

    for task in _tasks(line):
        try:
            if task.site not in sites:
                sites[task.site] = place.open(task.site, store)
            answer: Incoming | FedAppError = carried(sites[task.site].handle(task, {}))
        except FedAppError as error:
            answer = error
        try:
            line.send(answer)
        except OSError:  # the parent has ended
            return


def _end_with_parent() -> None:
    """End this process at once if its parent was killed.

    The run may already have been resumed, and other processes then work for the same sites.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _tasks(line: Connection) -> Iterator[Task]:
    """Yield tasks until the other end is closed."""
    while True:
        try:
            task = decode_request(line.recv())
        except (EOFError, OSError):
            return
        assert isinstance(task, Task)
        yield task
