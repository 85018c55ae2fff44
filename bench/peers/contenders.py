"""Who can be measured, and where it lies."""

import os
import subprocess
import sys
from dataclasses import dataclass
from json import loads
from pathlib import Path
from typing import Any

from bench.peers.turn import Request
from fedapp.core.errors import ConfigError

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Kind:
    """A program that can be measured.

    module: in this package. what: a checkout of it. inside: of a checkout, what Python imports
    from. proof: a file that every checkout has.
    """

    module: str
    what: str
    proof: str
    inside: str = "."


LOOP, STEPS, OURS = "bare loop", "loop in our steps", "this project"
KINDS = {
    "before": Kind("ours", "an earlier checkout of this project", "fedapp/__init__.py"),
    "PFLlib": Kind(
        "pfllib", "github.com/TsingZ0/PFLlib", "system/flcore/servers/serveravg.py", "system"
    ),
    "FL-bench": Kind("fl_bench", "github.com/KarhouTam/FL-bench", "src/server/fedavg.py"),
    "pfl-research": Kind(
        "pfl_research", "github.com/apple/pfl-research", "pfl/algorithm/federated_averaging.py"
    ),
}
"""By name; the option that points at a checkout is its name in small letters."""


@dataclass(frozen=True)
class Contender:
    """Who runs. path: what goes in front of Python's path; empty: nothing."""

    name: str
    module: str
    path: str = ""

    def turn(self, folder: Path, out: Path, evaluate: bool, rounds: int) -> dict[str, Any]:
        """Run in a process of its own, on one thread; return what `turn.main` wrote.

        Raises ConfigError, one line, where it fails.
        """
        request = Request(self.module, self.path, str(folder), str(out), evaluate, rounds)
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-m", "bench.peers.turn", request.as_text()],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise ConfigError(
                f"{self.name}: {said[-1] if said else f'exit code {done.returncode}'}: install "
                "what it needs beside this project, or leave it out"
            )
        found: dict[str, Any] = loads(Path(f"{out}.json").read_text())
        return found


def contender(name: str, checkout: Path) -> Contender:
    """Return one of `KINDS` at a checkout. Raises ConfigError where there is none."""
    kind = KINDS[name]
    if not (checkout / kind.proof).is_file():
        raise ConfigError(
            f"--{name.lower()} {checkout}: has no {kind.proof}: give the folder of {kind.what}"
        )
    return Contender(name, kind.module, str((checkout / kind.inside).resolve()))
