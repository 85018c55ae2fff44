"""What does Flower cost? The same rounds through `flwr run` and in the loopback driver.

`python -m bench.overhead [--rounds N] [--repetitions N] [--quick] [key=value ...]`: 20 sites on
Fashion-MNIST, ResNet-9 of width 32. "one core": both on one core with one thread, so that all work
of server, Ray and site counts; "all cores": Flower's actors, one per core, against the loopback
driver with as many threads. Rounds are timed by the run itself (metrics.jsonl), from a round's end
to the next one's; start-up is not in them. The two drivers take turns.
"""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.command import Overrides, Quick, Rounds, Turns, carry_out
from bench.measure import in_turns, laps, rounds_beside
from bench.record import Row, save
from fedapp.experiment.records import Records

PRESET = "fashion_mnist_small"
SETTING = (
    "model.width=32",
    "data.subset=2800",
    "training.local_epochs=1",
    "training.warmup_epochs=1",
    "method.search_rounds=100",
)
TOY = ("data.name=digits", "data.image_size=16", "data.subset=400", "model.width=2")
DRIVERS = {"loopback": ("fedapp.cli", "run"), "flower": ("fedapp.drivers.flower_local",)}


def main(
    overrides: Overrides = None, rounds: Rounds = 5, repetitions: Turns = 3, quick: Quick = False
) -> None:
    """Run both drivers in turn; save seconds per round and their ratio."""
    if quick:
        rounds, repetitions = 2, 1
    cores = sorted(os.sched_getaffinity(0))
    setting = [*(TOY if quick else SETTING), *(overrides or [])]
    rows: list[Row] = []
    for case, used in {"one core": cores[:1], "all cores": cores}.items():
        runs = in_turns(
            {name: partial(seconds, name, used, setting, rounds) for name in DRIVERS}, repetitions
        )
        rows += [
            {"case": case, "driver": row.pop("case"), **row}
            for row in rounds_beside(runs, "loopback", sum)
        ]
    save("overhead", rows, {"preset": PRESET, "setting": setting}, quick=quick)


def seconds(driver: str, cores: list[int], overrides: list[str], rounds: int) -> list[float]:
    """Run once on these cores; return the seconds of each round but the warm-up."""
    with TemporaryDirectory(prefix="bench-") as out:
        settings = [*overrides, f"rounds.num_rounds={rounds}", "runtime.run_name=run"]
        settings += ["data.download=false", f"runtime.out={out}"]
        if driver == "loopback":
            settings.append(f"runtime.threads={len(cores)}")
        command = [sys.executable, "-m", *DRIVERS[driver], PRESET, *settings]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
        return laps([row["wall_seconds"] for row in Records(Path(out) / "run").metrics()])


if __name__ == "__main__":
    carry_out(main)
