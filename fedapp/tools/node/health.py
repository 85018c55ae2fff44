"""When a site's SuperNode is online, and when it must be started again: clock in, decision out.

Flower's server takes a node for online for `PATIENCE_S` after it last acknowledged it, so that is
what online means here too. A SuperNode that is offline is given up only where the server has
answered somebody else for `ANSWERS_S`: while nobody answers, the SuperNode tries again by itself,
and keeps what it is working on.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from secrets import SystemRandom

PATIENCE_S = 60.0
"""Seconds after an acknowledgement for which the server takes a node for online; Flower's own."""
ANSWERS_S = 30.0
"""Seconds for which the server must answer before an offline SuperNode is given up. Flower repeats
a failed heartbeat every 20 s, and each may take 5."""
FIRST_WAIT_S, LAST_WAIT_S = 1.0, 20.0
"""Waits before a SuperNode is started again: doubled each time. The last is well below the minute
in which a site is to be back."""


@dataclass
class Watch:
    """One site's SuperNode, as its supervisor sees it. All times are seconds of one clock.

    share: the part of a wait that is drawn, in [0, 1): sites that fell together do not come back
    together.
    """

    share: Callable[[], float] = field(default=SystemRandom().random)
    _heard: float | None = None
    _since: float = 0.0
    _answers: float | None = None
    _failures: int = 0

    def started(self, now: float) -> None:
        """Note that a SuperNode was started."""
        self._since, self._heard, self._answers = now, None, None

    def acknowledged(self, now: float) -> None:
        """Note that the server has acknowledged the SuperNode."""
        if not self.online(now):
            self._since = now
        self._heard = now

    def server(self, now: float, answers: bool) -> None:
        """Note whether the server answers somebody who asks from this machine."""
        self._answers = (self._answers if self._answers is not None else now) if answers else None

    def online(self, now: float) -> bool:
        """Return whether the server takes the SuperNode for online."""
        return self._heard is not None and now - self._heard < PATIENCE_S

    def doubtful(self, now: float) -> bool:
        """Return whether it is time to ask whether the server answers."""
        return now - (self._since if self._heard is None else self._heard) >= PATIENCE_S / 2

    def given_up(self, now: float) -> bool:
        """Return whether the SuperNode must be ended: alive, offline, and the server answers."""
        silent = now - (self._since if self._heard is None else self._heard)
        return (
            silent >= PATIENCE_S and self._answers is not None and now - self._answers >= ANSWERS_S
        )

    def wait(self, now: float) -> float:
        """Note that a SuperNode has ended; return the seconds to wait before the next one.

        Short again after one that was online for longer than the server's patience.
        """
        if self._heard is not None and self._heard - self._since >= PATIENCE_S:
            self._failures = 0
        longest = min(FIRST_WAIT_S * 2.0 ** min(self._failures, 16), LAST_WAIT_S)
        self._failures += 1
        return longest * (1 + self.share()) / 2
