"""Run the benchmarks one after the other, then write the tables of docs/results/benchmarks.md.

`python -m bench [--quick] [NAME ...]` runs all of them, or those named. If one fails, the others
still run, and the exit code is 1. `--quick` runs each at toy size, to see whether it works: nothing
is recorded, and the tables stay as they are.
"""

import subprocess
import sys
import time
from typing import Annotated

import typer

from bench.command import Quick
from fedapp.core.formatting import duration

BENCHMARKS = ("scoring", "training", "peers")


def main(
    names: Annotated[list[str] | None, typer.Argument(help=" ".join(BENCHMARKS))] = None,
    quick: Quick = False,
) -> None:
    """Run all benchmarks or those named, then write the tables; exit code 1 when one failed."""
    wanted = names or list(BENCHMARKS)
    if unknown := [name for name in wanted if name not in BENCHMARKS]:
        known = ", ".join(BENCHMARKS)
        print(f"bench: no benchmark {', '.join(unknown)}; there are {known}", file=sys.stderr)
        raise SystemExit(2)
    failed = [name for name in wanted if not passed(name, quick)]
    if not quick and subprocess.run([sys.executable, "-m", "bench.tables"], check=False).returncode:
        failed.append("tables")
    if failed:
        print(f"bench: failed: {', '.join(failed)}")
        raise SystemExit(1)


def passed(name: str, quick: bool) -> bool:
    """Run a benchmark; return whether it succeeded."""
    command = [f"bench.{name}", *(["--quick"] if quick else [])]
    print(f"bench: {name}: python -m {' '.join(command)}", flush=True)
    began = time.monotonic()
    code = subprocess.run([sys.executable, "-m", *command], check=False).returncode
    outcome = "done" if code == 0 else f"FAILED with exit code {code}"
    print(f"bench: {name} {outcome} after {duration(time.monotonic() - began)}", flush=True)
    return code == 0


if __name__ == "__main__":
    typer.run(main)
