"""Keep a site's SuperNode online: start it, look after it, start it again, end it.

Nothing here knows Flower. The child writes a byte to a pipe whenever the server acknowledges it;
it must end when its standard input does, so that it cannot outlive this program.
"""

import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import monotonic

from fedapp.core.processes import (
    adopt_orphans,
    running_descendants,
    signals_as_exit,
    terminate,
    terminate_descendants,
)
from fedapp.tools.node.health import Watch
from fedapp.tools.node.status import Status

LOOK_S = 5.0
"""Seconds between two looks."""
LEAVE_S = 10.0
"""Seconds for a SuperNode to sign off at the server, before what is left of it is ended."""


@dataclass(frozen=True)
class Supervisor:
    """command: the child's, without the number of the pipe, which follows it.

    trouble: asks the server from this machine, within a look's time; returns what is wrong, or "".
    """

    command: Sequence[str]
    options: Sequence[str]
    trouble: Callable[[], str]
    status: Status
    watch: Watch
    look_s: float = LOOK_S

    def run(self) -> None:
        """Keep the SuperNode online until a signal ends this program; then nothing is left."""
        adopt_orphans()
        try:
            with signals_as_exit():
                while True:
                    self._once()
        except SystemExit:
            return  # a person's or systemd's wish: no failure
        finally:
            terminate_descendants()
            self.status.gone()

    def _once(self) -> None:
        """Run one SuperNode to its end, and wait until the next one is due."""
        with self._child() as (process, told):
            self.status.now("starting", "a SuperNode")
            self.watch.started(monotonic())
            if self._follow(told):
                why = f"the SuperNode has ended (exit code {_code(process)})"
            else:
                why = "the server answers, but the SuperNode is offline: it is ended"
        wait = self.watch.wait(monotonic())
        self.status.now("offline", f"{why}; another one starts in {wait:.0f} s")
        time.sleep(wait)

    def _follow(self, told: int) -> bool:
        """Look after a SuperNode until it has ended, or must be; return whether it has."""
        while not self.watch.given_up(monotonic()):
            if select.select([told], [], [], self.look_s)[0]:
                if not os.read(told, 4096):
                    return True
                self.watch.acknowledged(monotonic())
            trouble = ""
            if self.watch.doubtful(monotonic()):
                trouble = self.trouble()
                self.watch.server(monotonic(), not trouble)
            if self.watch.online(monotonic()):
                self.status.now("online", "the server acknowledges the SuperNode")
            elif trouble:
                self.status.now("offline", f"{trouble}; the SuperNode tries again by itself")
            else:
                self.status.still()
        return False

    @contextmanager
    def _child(self) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
        """Hold a SuperNode; in the end nothing that it started is left."""
        told, tells = os.pipe()
        try:
            process = subprocess.Popen(
                [*self.command, str(tells), *self.options],
                stdin=subprocess.PIPE,
                pass_fds=(tells,),
                start_new_session=True,  # Ctrl-C is ours to handle
            )
        finally:
            os.close(tells)
        try:
            yield process, told
        finally:
            process.terminate()  # alone: one that is asked twice leaves without signing off
            with suppress(subprocess.TimeoutExpired):
                process.wait(LEAVE_S)
            terminate(running_descendants)
            os.close(told)


def _code(process: subprocess.Popen[bytes]) -> int | None:
    """Return the exit code of a child that has closed its pipe; None where it ends too slowly."""
    try:
        return process.wait(LEAVE_S)
    except subprocess.TimeoutExpired:
        return None
