"""The programs that can be measured, and where their checkouts are."""

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

    Attributes:
        module: name of its adapter in this package.
        what: where a checkout of it comes from.
        proof: a file that every checkout has.
        inside: the folder of a checkout that Python imports from.
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
"""By name. The option that gives the path of a checkout is the name in lower case."""


@dataclass(frozen=True)
class Contender:
    """One contender. path: a folder that is put in front of Python's path; empty: none."""

    name: str
    module: str
    path: str = ""

    def turn(self, folder: Path, out: Path, evaluate: bool, rounds: int) -> dict[str, Any]:
        """Run in a process of its own with one thread; return what `turn.main` wrote.

        Raises ConfigError, in one line, where the process fails.
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
    """Return the contender of a name in `KINDS`. Raises ConfigError without such a checkout."""
    kind = KINDS[name]
    if not (checkout / kind.proof).is_file():
        raise ConfigError(
            f"--{name.lower()} {checkout}: has no {kind.proof}: give the folder of {kind.what}"
        )
    return Contender(name, kind.module, str((checkout / kind.inside).resolve()))
