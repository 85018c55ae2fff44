"""Keeps a site's SuperNode online: starts it, watches it, restarts it, ends it.

Nothing here knows Flower. The child process writes a byte to a pipe whenever the server
acknowledges it, and ends when its standard input closes, so that it cannot outlive this program.

When to restart is decided by `Watch`, from times alone. Flower's server takes a node for online for
`PATIENCE_S` after the last acknowledgement, and so does this program. An offline SuperNode is ended
and restarted only after the server has answered other requests for `ANSWERS_S`. While the server
answers nobody, the SuperNode keeps trying by itself, and keeps the work it is doing.
"""

import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from secrets import SystemRandom
from time import monotonic

from fedapp.core.processes import (
    adopt_orphans,
    running_descendants,
    signals_as_exit,
    terminate,
    terminate_descendants,
)
from fedapp.tools.node.status import Status

PATIENCE_S = 60.0
"""Seconds after an acknowledgement for which Flower's server takes a node for online."""
ANSWERS_S = 30.0
"""Seconds for which the server must have answered before an offline SuperNode is restarted. Flower
repeats a failed heartbeat every 20 s, and each may take 5 s."""
FIRST_WAIT_S, LAST_WAIT_S = 1.0, 20.0
"""Seconds to wait before a restart: the first wait, which doubles up to the last. The last is well
below a minute, within which a site should be back."""


@dataclass
class Watch:
    """Decides whether a SuperNode is online and when to restart it.

    All times are seconds of one clock that only runs forward. share: draws a number in [0, 1) that
    varies each wait, so that sites that went offline together do not come back all at once.
    """

    share: Callable[[], float] = field(default=SystemRandom().random)
    _heard: float | None = None
    _since: float = 0.0
    _answers: float | None = None
    _failures: int = 0

    def started(self, now: float) -> None:
        """Note that a SuperNode was started now."""
        self._since, self._heard, self._answers = now, None, None

    def acknowledged(self, now: float) -> None:
        """Note that the server acknowledged the SuperNode now."""
        if not self.online(now):
            self._since = now
        self._heard = now

    def server(self, now: float, answers: bool) -> None:
        """Note whether the server answered a request from this machine now."""
        self._answers = (self._answers if self._answers is not None else now) if answers else None

    def online(self, now: float) -> bool:
        """Return whether the server still takes the SuperNode for online."""
        return self._heard is not None and now - self._heard < PATIENCE_S

    def doubtful(self, now: float) -> bool:
        """Return whether the SuperNode was silent so long that the server should be asked."""
        return now - (self._since if self._heard is None else self._heard) >= PATIENCE_S / 2

    def given_up(self, now: float) -> bool:
        """Return whether the SuperNode must be ended: it is offline although the server answers."""
        silent = now - (self._since if self._heard is None else self._heard)
        return (
            silent >= PATIENCE_S and self._answers is not None and now - self._answers >= ANSWERS_S
        )

    def wait(self, now: float) -> float:
        """Note that a SuperNode has ended; return the seconds to wait before the next one.

        The wait doubles with each failure in a row. It begins short again after a SuperNode that
        was online for at least `PATIENCE_S`.
        """
        if self._heard is not None and self._heard - self._since >= PATIENCE_S:
            self._failures = 0
        longest = min(FIRST_WAIT_S * 2.0 ** min(self._failures, 16), LAST_WAIT_S)
        self._failures += 1
        return longest * (1 + self.share()) / 2


LOOK_S = 5.0
"""Seconds between two checks of the SuperNode."""
LEAVE_S = 10.0
"""Seconds for a SuperNode to sign off at the server before it is killed."""


@dataclass(frozen=True)
class Supervisor:
    """Runs one SuperNode after the other.

    command, options: the child's command line; the number of the pipe's file descriptor goes
    between them. trouble: asks the server from this machine, within `look_s` seconds, and returns
    what is wrong, or "". status: where the state is reported. look_s: seconds between two checks.
    advice: returns what a person should do where a SuperNode has ended, or "".
    """

    command: Sequence[str]
    options: Sequence[str]
    trouble: Callable[[], str]
    status: Status
    watch: Watch
    look_s: float = LOOK_S
    advice: Callable[[], str] = str

    def run(self) -> None:
        """Keep the SuperNode online until a signal ends this program; leave no process behind."""
        adopt_orphans()
        try:
            with signals_as_exit():
                while True:
                    self._once()
        except SystemExit:
            return  # ended by a person or by systemd, which is no failure
        finally:
            terminate_descendants()
            self.status.gone()

    def _once(self) -> None:
        """Run one SuperNode to its end, and wait until the next one is due."""
        with self._child() as (process, told):
            self.status.now("starting", "a SuperNode")
            self.watch.started(monotonic())
            if self._follow(told):
                advice = self.advice()
                why = f"the SuperNode has ended (exit code {_code(process)}){': ' * bool(advice)}"
                why += advice
            else:
                why = "the server answers, but the SuperNode is offline: it is ended"
        wait = self.watch.wait(monotonic())
        self.status.now("offline", f"{why}; another one starts in {wait:.0f} s")
        time.sleep(wait)

    def _follow(self, told: int) -> bool:
        """Watch a SuperNode; return True once it has ended, False once it must be ended."""
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
        """Start a SuperNode, yield it with the pipe's end, and leave no process of it behind."""
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
            process.terminate()  # once: asked twice, Flower leaves without signing off
            with suppress(subprocess.TimeoutExpired):
                process.wait(LEAVE_S)
            terminate(running_descendants)
            os.close(told)


def _code(process: subprocess.Popen[bytes]) -> int | None:
    """Return the exit code of a child that has closed its pipe; None if it ends too slowly."""
    try:
        return process.wait(LEAVE_S)
    except subprocess.TimeoutExpired:
        return None
