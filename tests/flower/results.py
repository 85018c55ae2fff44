"""What must be equal between two runs of one experiment, and the loopback run to compare with."""

import json
from pathlib import Path
from typing import Any

from fedapp.drivers.loopback import run_loopback
from fedapp.experiment.experiment import Experiment


def rows(folder: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without the clock."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [_untimed(json.loads(line)) for line in lines]


def results(folder: Path) -> dict[str, Any]:
    """Rows, every site's model by digest, helper lists, evaluations, and all traffic."""
    checkpoint = _untimed(json.loads((folder / "checkpoint.json").read_text()))
    return {"rows": rows(folder), "traffic": (folder / "traffic.csv").read_text(), **checkpoint}


def _untimed(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _untimed(inner) for k, inner in value.items() if k != "wall_seconds"}
    return [_untimed(inner) for inner in value] if isinstance(value, list) else value


def loopback(experiment: Experiment) -> Path:
    """Run the experiment without Flower; return its folder."""
    return run_loopback(experiment)[1]
