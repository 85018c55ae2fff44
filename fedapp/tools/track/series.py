"""What a tracker is told of a run: its settings, and numbers round by round.

The run's own JSON lines stay the truth: a tracker's store can be made of them anew at any time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fedapp.experiment.presetfiles import Scalar, read_yaml
from fedapp.experiment.records import Records, damaged
from fedapp.ground.errors import RunError


@dataclass(frozen=True)
class Round:
    """One row of metrics.jsonl. seconds: since the run began."""

    number: int
    seconds: float
    values: Mapping[str, float]


@dataclass(frozen=True)
class Tracked:
    """A run as a tracker shows it.

    group: its preset, or the comparison that it is a cell of; name: of the run in it. started:
    seconds since 1970. settings: by dotted key.
    """

    folder: Path
    group: str
    name: str
    started: float
    settings: Mapping[str, Scalar]

    def rounds(self) -> list[Round]:
        """Return the rounds that are there by now, in order."""
        return [round_of(row) for row in Records(self.folder).metrics()]


def round_of(row: Mapping[str, Any]) -> Round:
    """Return a row's numbers under their own names; `skipped` becomes how many sites were."""
    values = {
        key: float(value)
        for key, value in row.items()
        if key not in {"round", "wall_seconds"} and isinstance(value, int | float)
    }
    values["skipped"] = float(len(row.get("skipped") or {}))
    return Round(row["round"], float(row.get("wall_seconds") or 0.0), values)


def tracked(folder: Path) -> list[Tracked]:
    """Return a run, or all runs of a comparison that have begun, by name.

    Raises RunError where the folder holds neither, or a damaged run.json.
    """
    if (folder / "run.json").is_file():
        plain = read_yaml(folder / "config.yaml")
        return [_tracked(folder, str(plain["name"]), folder.name)]
    cells = sorted(path.parent for path in (folder / "cells").glob("*/*/*/run.json"))
    if not cells:
        remedy = "name the folder of a run or of a comparison"
        raise RunError(f"{folder}: holds no run that has begun: {remedy}")
    inside = folder / "cells"
    return [_tracked(cell, folder.name, cell.relative_to(inside).as_posix()) for cell in cells]


def _tracked(folder: Path, group: str, name: str) -> Tracked:
    facts = Records(folder).read_json("run.json") or {}
    try:
        started = datetime.fromisoformat(str(facts["started"])).timestamp()
    except (KeyError, ValueError) as error:
        raise RunError(damaged(folder / "run.json", f"no start: {error}")) from error
    plain = read_yaml(folder / "config.yaml")
    settings = {
        f"{group}.{key}": value
        for group, values in plain.items()
        if isinstance(values, dict)
        for key, value in values.items()
    }
    return Tracked(folder, group, name, started, {"seed": plain["seed"], **settings})
