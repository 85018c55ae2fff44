"""How a run stands, as its folder tells: nothing is asked of the run itself."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapp.experiment.atwork import at_work
from fedapp.experiment.presetfiles import read_yaml
from fedapp.experiment.records import Records
from fedapp.ground.errors import RunError
from fedapp.ground.progress import RECENT
from fedapp.server.fall import fallen

Row = dict[str, Any]


@dataclass(frozen=True)
class Watched:
    """One look at a run.

    rounds: to be done after the warm-up. rows: of metrics.jsonl, the warm-up's first. working:
    whether a server is at it; ended: whether it is done. silent_s: seconds since the last row.
    """

    name: str
    method: str
    sites: int
    rounds: int
    rows: Sequence[Row]
    working: bool
    ended: bool
    silent_s: float

    @property
    def done(self) -> int:
        """Rounds done after the warm-up; -1 before the warm-up is over."""
        return int(self.rows[-1]["round"]) if self.rows else -1

    @property
    def round_s(self) -> float | None:
        """Mean seconds of the latest rounds; None before the first one."""
        marks = [row["wall_seconds"] for row in self.rows[-RECENT - 1 :] if "wall_seconds" in row]
        return (marks[-1] - marks[0]) / (len(marks) - 1) if len(marks) > 1 else None

    @property
    def left_s(self) -> float | None:
        """Seconds left, as the latest rounds took; None where nothing can be said."""
        if self.round_s is None or self.done >= self.rounds:
            return None
        return max(self.round_s * (self.rounds - self.done) - self.silent_s, 0.0)

    def accuracies(self, part: str) -> list[float]:
        """Return the mean accuracies on "val" or "test", round by round, as far as measured."""
        every = (row.get(f"mean_{part}_accuracy") for row in self.rows)
        return [accuracy for accuracy in every if accuracy is not None]

    def warnings(self) -> list[str]:
        """Return a line for each site that was skipped and each fall of the average, in order."""
        lines = []
        for before, row in zip([{}, *self.rows], self.rows, strict=False):
            lines += warnings_of(row, before)
        return lines


def warnings_of(row: Row, before: Row) -> list[str]:
    """Return what one round deserves attention for. before: the row of the round before."""
    skipped = row.get("skipped") or {}
    lines = [f"round {row['round']}: site {k} skipped: {reason}" for k, reason in skipped.items()]
    fall = fallen(row, before)
    return [*lines, fall] if fall else lines


def look(run: Path) -> Watched:
    """Return how a run stands. Raises RunError where the folder holds no run."""
    if not (run / "config.yaml").is_file():
        several = (run / "cells").is_dir()
        remedy = "name a run of it, below cells/" if several else "name the folder of a run"
        raise RunError(f"{run}: {'a comparison' if several else 'no run'}: {remedy}")
    plain = read_yaml(run / "config.yaml")
    # Asked first: a run that ends meanwhile is not taken for one that was cut.
    working = at_work(run)
    rows = Records(run).metrics()
    metrics = run / "metrics.jsonl"
    return Watched(
        name=str(plain["name"]),
        method=str(plain["method"]["name"]),
        sites=plain["split"]["num_clients"],
        rounds=plain["rounds"]["num_rounds"],
        rows=rows,
        working=working,
        ended=not working and (run / "summary.json").is_file(),
        silent_s=max(time.time() - metrics.stat().st_mtime, 0.0) if rows else 0.0,
    )
