"""Which node is online, how long its last answer took, why it was refused: for whoever looks on.

It is written into the run's folder, `records.NODES`, a second apart at most. No run depends on it.
"""

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from fedapp.experiment.records import NODES, Row, pretty
from fedapp.ground.disk import write_atomic
from fedapp.ground.errors import StoreError

EVERY_S = 1.0
"""Seconds between two writings."""


@dataclass
class Attendance:
    """folder: of the run; None: nothing is written."""

    folder: Path | None = None
    _nodes: dict[int, Row] = field(default_factory=dict)
    _written: float = -EVERY_S

    def online(self, nodes: Iterable[int]) -> None:
        """Note which nodes the server can reach now."""
        here = set(nodes)
        for node in here | self._nodes.keys():
            self._row(node)["online"] = node in here
        self.save()

    def took_in(self, node: int, site: int, called: str) -> None:
        """Note which site a node is."""
        self._nodes[node] = {"online": True, "who": called, "site": site, "at": _now()}
        self.save()

    def refused(self, node: int, called: str, why: str, lasting: bool) -> None:
        """Note why a node is no site of the run. lasting: it is not asked again."""
        said = {"who": called, "refused": why, "lasting": lasting, "at": _now()}
        self._nodes[node] = {"online": self._row(node)["online"], **said}
        self.save()

    def answered(self, node: int, seconds: float, what: str) -> None:
        """Note an answer to a task."""
        self._row(node).update(seconds=round(seconds, 1), answered=what, at=_now())
        self.save()

    def save(self, *, at_once: bool = False) -> None:
        """Write it down, unless that was done just now; a full disk is the run's affair."""
        if self.folder is None or not (at_once or time.monotonic() > self._written + EVERY_S):
            return
        self._written = time.monotonic()
        rows = {"at": _now(), "nodes": {str(node): row for node, row in self._nodes.items()}}
        with suppress(StoreError):
            write_atomic(self.folder / NODES, pretty(rows).encode(), durable=False)

    def _row(self, node: int) -> Row:
        return self._nodes.setdefault(node, {"online": True, "who": f"node {node}"})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
