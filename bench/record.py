"""Save, print and read results of benchmarks, with all that is needed to run them again."""

import csv
import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.table import Table

from bench.command import called
from fedapp.experiment.code_hash import code_hash

if TYPE_CHECKING:
    from matplotlib.figure import Figure  # a machine with a GPU may lack it

RESULTS = Path(__file__).parent / "results"

Row = Mapping[str, str | float | int | None]
Cells = dict[str, str | float | int | None]
"""A row that is still being filled in."""


def machine() -> dict[str, str | int | float]:
    """Describe the machine: processor, cores this process may use, memory, GPU."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30, 1),
        "gpu": gpu,
    }


def versions() -> dict[str, str]:
    """Return the versions of the libraries that decide the speed, as far as they are installed."""
    found = {"python": platform.python_version()}
    for name in ("torch", "numpy", "safetensors", "flwr", "ray"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def save(
    name: str,
    rows: Sequence[Row],
    notes: Mapping[str, object] | None = None,
    figure: "Figure | None" = None,
    quick: bool = False,
) -> None:
    """Print the rows and write them to bench/results/<name>.json with machine and versions.

    notes: what all rows have in common, such as sizes. figure: saved beside the file, as PNG.
    quick: a run at toy size, of which nothing is written.
    """
    show(name, rows)
    if quick:
        return
    content = {
        "name": name,
        "command": shlex.join(["python", "-m", called(), *sys.argv[1:]]),
        "machine": machine(),
        "versions": versions(),
        "code": code_hash()[1],
        **(notes or {}),
        "rows": list(rows),
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(content, indent=1) + "\n")
    if figure is not None:
        figure.savefig(path.with_suffix(".png"), dpi=120)
    print(f"written to {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


def show(title: str, rows: Sequence[Row]) -> None:
    """Print rows as a table."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def csv_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file by the names of its columns."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _cell(value: str | float | int | None) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
