"""What does Flower cost? The same rounds through `flwr run` and in the loopback driver.

`python -m bench.overhead [--rounds N] [--repetitions N] [--app DIR] [key=value ...]`: 20 sites on
Fashion-MNIST, ResNet-9 of width 32. "one core": both on one core with one thread, so that all work
of server, Ray and site counts; "all cores": Flower's actors, one per core, against the loopback
driver with as many threads. Rounds are timed by the run itself (metrics.jsonl), from a round's end
to the next one's; start-up is not in them. The two drivers take turns.
"""

import json
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from bench.record import Row, save

PRESET = "fashion_mnist_small"
SETTING = (
    "model.width=32",
    "data.subset=2800",
    "training.local_epochs=1",
    "training.warmup_epochs=1",
    "method.search_rounds=100",
)


def main(
    overrides: Annotated[list[str] | None, typer.Argument()] = None,
    rounds: int = 5,
    repetitions: int = 3,
    app: Path = Path("."),
    name: str = "overhead",
) -> None:
    """Run both drivers in turn; save seconds per round and their ratio."""
    cores = sorted(os.sched_getaffinity(0))
    cases = {"one core": cores[:1], "all cores": cores}
    rows: list[Row] = []
    for case, used in cases.items():
        taken: dict[str, list[float]] = {"loopback": [], "flower": []}
        ratios = []
        for repetition in range(repetitions):
            once = {}
            for driver in sorted(taken, reverse=bool(repetition % 2)):
                once[driver] = seconds(driver, used, [*SETTING, *(overrides or [])], rounds, app)
                taken[driver] += once[driver]
            ratios.append(sum(once["flower"]) / sum(once["loopback"]))
        for driver, values in taken.items():
            rows.append(
                {
                    "case": case,
                    "driver": driver,
                    "rounds": len(values),
                    "median_s": round(median(values), 3),
                    "min_s": round(min(values), 3),
                    "max_s": round(max(values), 3),
                    "ratio": round(median(ratios), 3) if driver == "flower" else 1.0,
                    "ratio_min": round(min(ratios), 3) if driver == "flower" else 1.0,
                    "ratio_max": round(max(ratios), 3) if driver == "flower" else 1.0,
                }
            )
    save(name, rows, {"preset": PRESET, "setting": [*SETTING, *(overrides or [])]})


def seconds(
    driver: str, cores: list[int], overrides: list[str], rounds: int, app: Path
) -> list[float]:
    """Run once on these cores; return the seconds of each round but the warm-up."""
    with tempfile.TemporaryDirectory(prefix="bench-") as out:
        settings = [*overrides, f"rounds.num_rounds={rounds}", "runtime.run_name=run"]
        settings += ["data.download=false", f"runtime.out={out}"]
        command = [sys.executable, "-m", "fedapp.drivers.flower_local", PRESET, *settings]
        if driver == "loopback":
            threads = f"runtime.threads={len(cores)}"
            command = [sys.executable, "-m", "fedapp.cli", "run", PRESET, *settings, threads]
        done = subprocess.run(
            command,
            cwd=app,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
        lines = (Path(out) / "run" / "metrics.jsonl").read_text().splitlines()
    ends = [json.loads(line)["wall_seconds"] for line in lines]
    return [after - before for before, after in pairwise(ends)]


if __name__ == "__main__":
    typer.run(main)
