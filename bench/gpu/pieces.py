"""A session of the benchmark: its pieces one after the other, each of them once."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.gpu import groups, paper, sites, speed
from bench.gpu.check import card, missing_for_tests
from bench.record import Row, save, show
from fedapp.experiment.config import load_experiment, parse_overrides
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.presetfiles import Scalar
from fedapp.ground.disk import write_atomic
from fedapp.ground.errors import ConfigError, RunError
from fedapp.ground.text import duration

PRESET = "fashion_mnist"
ROOT = Path(__file__).parents[2]
RECORDED = ("speed", "ways", "groups", "sites", "paper")
"""Pieces whose figures go into docs/PERFORMANCE.md."""
TOY = (
    "data.name=digits",
    "data.subset=300",
    "split.num_clients=4",
    "model.width=4",
    "training.local_epochs=1",
    "training.warmup_epochs=1",
    "rounds.num_rounds=3",
    "rounds.sample_rate=0.5",
    "runtime.device=cpu",
)


@dataclass(frozen=True)
class Session:
    """What is asked for. out: what is done lies here. given: overrides of the preset.

    deadline: seconds of time.monotonic; None: none. numbers: file of the paper's; None: ours.
    """

    out: Path
    toy: bool
    given: tuple[str, ...]
    deadline: float | None
    numbers: Path | None

    def carry_out(self, wanted: Sequence[str]) -> bool:
        """Do the pieces that are not done; return whether all are.

        Raises ConfigError without a GPU, unless it is a toy, and where the folder holds pieces of
        another session.
        """
        if not self.toy and not torch.cuda.is_available():
            raise ConfigError("no GPU: run this where PyTorch finds one, or try it with --quick")
        self._same_as_before()
        size = speed.TINY if self.toy else speed.CARD
        pieces: dict[str, Callable[[], Sequence[Row] | None]] = {
            "check": lambda: [{"what": name, "here": value} for name, value in card().items()],
            "tests": self._tests,
            "speed": lambda: speed.rates(self.experiment(), size),
            "ways": lambda: speed.ways(self.experiment(), size),
            "groups": lambda: groups.rows(
                self.experiment(),
                (4,) if self.toy else (8, 64),
                (2, 4) if self.toy else groups.MEMBERS,
                size.repetitions,
            ),
            "sites": lambda: sites.rows(self.experiment, self.out / "sites", self.over, self.toy),
            "paper": lambda: paper.runs(self.out, self.overrides(), self.deadline),
            "table": lambda: paper.table(self.out, self.numbers),
        }
        for name in wanted:
            path = self.out / f"{name}.json"
            if path.exists() and name != "table":
                print(f"bench.gpu: {name}: done before", flush=True)
                continue
            if self.over():
                return False
            began = time.monotonic()
            print(f"bench.gpu: {name}", flush=True)
            if (rows := pieces[name]()) is None:
                return False
            self._keep(name, rows)
            write_atomic(path, json.dumps(list(rows)).encode(), durable=False)
            print(f"bench.gpu: {name}: {duration(time.monotonic() - began)}", flush=True)
        return True

    def over(self) -> bool:
        """Whether the time is over."""
        return self.deadline is not None and time.monotonic() > self.deadline

    def overrides(self) -> dict[str, Scalar]:
        """Return all that is changed of the preset."""
        ours = TOY if self.toy else ("runtime.device=cuda",)
        return {**parse_overrides(ours), **parse_overrides(self.given)}

    def experiment(self, **changes: Scalar) -> Experiment:
        """Return the paper's setting. changes: overrides, with two underscores for a dot."""
        more = {name.replace("__", "."): value for name, value in changes.items()}
        return load_experiment(PRESET, {**self.overrides(), **more})

    def _keep(self, name: str, rows: Sequence[Row]) -> None:
        if self.toy or name not in RECORDED:
            show(name, rows)
        else:
            save(f"gpu-{name}", rows, {"preset": PRESET, "setting": self.given})

    def _same_as_before(self) -> None:
        """Raise ConfigError where the folder holds pieces of another setting."""
        path, asked = self.out / "asked.json", json.dumps([self.toy, *self.given])
        self.out.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write_atomic(path, asked.encode(), durable=False)
        elif path.read_text() != asked:
            raise ConfigError(
                f"{self.out}: holds pieces of {path.read_text()}, this is {asked}; give another "
                "--out, or remove it"
            )

    def _tests(self) -> list[Row]:
        """Run the tests that are marked to need a GPU; they are skipped without one."""
        if lines := missing_for_tests():
            raise RunError("packages are missing: " + "; ".join(lines))
        tests = ROOT / "tests"
        files = [p for p in sorted(tests.rglob("test_*.py")) if "mark.cuda" in p.read_text()]
        # A warning of another torch than ours is no failure here.
        options = ["-q", "-m", "cuda", "-W", "default", "-p", "no:cacheprovider"]
        command = [sys.executable, "-m", "pytest", *options, *map(str, files)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stdout[-8000:], flush=True)
            raise RunError("tests that need a GPU failed, see above; the other pieces can be named")
        said = done.stdout.strip().splitlines()[-1]
        return [{"what": f"tests in {len(files)} files", "here": said}]
