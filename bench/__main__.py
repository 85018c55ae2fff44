"""Run the benchmarks one after the other, then write the tables of docs/results/benchmarks.md.

`python -m bench [--quick] [NAME ...]`: all of them, or those named. One that fails does not keep
the others from running; the exit code is 1 then. `--quick` runs each at toy size, to see whether it
runs: its figures go to a folder that is thrown away, and the tables stay as they are.
"""

import subprocess
import sys
import time
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Annotated

import torch
import typer

from fedapp.ground.text import duration


@dataclass(frozen=True)
class Benchmark:
    """`python -m bench.MODULE`. toy: its arguments at toy size. needs_gpu: at full size."""

    module: str
    toy: tuple[str, ...] = ()
    needs_gpu: bool = False


BENCHMARKS = {
    "scoring": Benchmark("scoring", ("--quick",)),
    "training": Benchmark("training", ("--quick",)),
    "tiny": Benchmark("tiny", ("--quick",)),
    "augment": Benchmark("augment", ("--quick",)),
    "parts": Benchmark("parts", ("--quick", "--rounds=1")),
    "idle": Benchmark("idle", ("--rounds=2", "--repetitions=1")),
    "outside": Benchmark("outside", ("--rounds=1", "model.width=2", "data.subset=400")),
    "overhead": Benchmark("overhead", ("--rounds=2", "--repetitions=1")),
    "traffic": Benchmark("traffic", ("--quick",)),
    "scale": Benchmark("scale", ("--quick",)),
    "resident": Benchmark("resident", ("--rounds=2", "--repetitions=1")),
    "onboarding": Benchmark("onboarding", ("--quick",)),
    "gpu": Benchmark("gpu", ("--toy",), needs_gpu=True),
}


def main(
    names: Annotated[list[str] | None, typer.Argument(help=" ".join(BENCHMARKS))] = None,
    quick: Annotated[bool, typer.Option("--quick", help="toy sizes, nothing recorded")] = False,
) -> None:
    """Run all benchmarks or those named, then write the tables; exit code 1 when one failed."""
    wanted = names or list(BENCHMARKS)
    if unknown := [name for name in wanted if name not in BENCHMARKS]:
        known = ", ".join(BENCHMARKS)
        print(f"bench: no benchmark {', '.join(unknown)}; there are {known}", file=sys.stderr)
        raise SystemExit(2)
    with TemporaryDirectory(prefix="bench-") as away:
        failed = [name for name in wanted if not passed(name, away if quick else None)]
    if not quick and subprocess.run([sys.executable, "-m", "bench.tables"], check=False).returncode:
        failed.append("tables")
    if failed:
        print(f"bench: failed: {', '.join(failed)}")
        raise SystemExit(1)


def passed(name: str, toys: str | None) -> bool:
    """Run a benchmark; return whether it came to its end or had no GPU that it needs.

    toys: the folder for the results of a toy size; None: full size, results where they belong.
    """
    benchmark = BENCHMARKS[name]
    if toys is None and benchmark.needs_gpu and not torch.cuda.is_available():
        print(f"bench: {name} left out: no GPU here", flush=True)
        return True
    module = f"bench.{benchmark.module}"
    command = [module] if toys is None else ["bench.apart", toys, module, *benchmark.toy]
    print(f"bench: {name}: python -m {' '.join(command)}", flush=True)
    began = time.monotonic()
    code = subprocess.run([sys.executable, "-m", *command], check=False).returncode
    outcome = "done" if code == 0 else f"FAILED with exit code {code}"
    print(f"bench: {name} {outcome} after {duration(time.monotonic() - began)}", flush=True)
    return code == 0


if __name__ == "__main__":
    typer.run(main)
