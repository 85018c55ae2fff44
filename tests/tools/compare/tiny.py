"""Grids so small that a cell trains in a moment, and a stand-in for a cell's process."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fedapp.tools.compare.cells import Cell, build_cells
from fedapp.tools.compare.grid import Grid, read_grid

SET = {
    "data.subset": 240,
    "data.image_size": 0,
    "split.num_clients": 4,
    "split.dirichlet_alpha": 1.0,
    "model.width": 4,
    "training.warmup_epochs": 2,
    "training.local_epochs": 1,
    "training.learning_rate": 0.02,
    "rounds.num_rounds": 3,
    "runtime.device": "cpu",
}


def grid_file(folder: Path, **changes: Any) -> Path:
    """Write a grid on digits; `changes` are its keys, None takes one away."""
    plain = {"preset": "digits_demo", "set": SET, "methods": ["fixavg", "um_pfssl"], "seeds": [0]}
    plain = {key: value for key, value in {**plain, **changes}.items() if value is not None}
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))
    return path


def grid(folder: Path, **changes: Any) -> Grid:
    return read_grid(str(grid_file(folder, **changes)))


def cells(folder: Path, **changes: Any) -> tuple[Cell, ...]:
    return build_cells(grid(folder, **changes), folder / "out")


def pretend_done(cell: Cell, accuracy: float = 0.5, **summary: Any) -> None:
    """Write what a cell that ran leaves behind."""
    pretend_begun(cell)
    whole = {
        "mean_test_accuracy": {"best": accuracy, "best_by_validation": accuracy},
        "wall_seconds": 1.0,
        **summary,
    }
    (cell.folder / "summary.json").write_text(json.dumps(whole))


def pretend_begun(cell: Cell, code: str = "") -> None:
    (cell.folder / "pool").mkdir(parents=True)
    (cell.folder / "sites").mkdir()
    facts = {"experiment": cell.digest, "manifest": "ab" * 32, "code": code}
    (cell.folder / "run.json").write_text(json.dumps(facts))
    (cell.folder / "checkpoint.json").write_text('{"round": 0}')


STAND_IN = """
import json, os, pathlib, sys
job = json.loads(sys.stdin.readline())
run = pathlib.Path(job["run"])
name = run.parent.name + "/" + run.name + "+" * job["overrides"].get("runtime.resume", False)
with open({calls!r}, "a") as calls:
    calls.write(name + "\\n")
(run / "pool").mkdir(parents=True, exist_ok=True)
facts = {{"experiment": job["digest"], "manifest": None, "code": "x"}}
(run / "run.json").write_text(json.dumps(facts))
(run / "checkpoint.json").write_text(json.dumps({{"round": 0}}))
behaviour = {behaviour!r}.get(run.parent.name, "")
if behaviour == "fail":
    sys.exit("first line\\nerror: out of luck")
if behaviour == "killed":
    os.kill(os.getpid(), 9)
if behaviour == "hang":
    sys.exit(sys.stdin.read())
accuracy = {{"best": 0.5, "best_by_validation": 0.5}}
(run / "summary.json").write_text(json.dumps({{"mean_test_accuracy": accuracy, "wall_seconds": 1}}))
"""


def stand_in(calls: Path, behaviour: Mapping[str, str]) -> list[str]:
    """Return a command that takes the place of a cell's process, and notes each start in `calls`.

    behaviour: method -> "fail", "killed", or "hang" until the comparison ends. Others are done at
    once.
    """
    return [sys.executable, "-c", STAND_IN.format(calls=str(calls), behaviour=dict(behaviour))]
