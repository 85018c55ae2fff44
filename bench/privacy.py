"""What do clipping and noise on uploads cost in accuracy, and which epsilon do they buy?

`python -m bench.privacy [--clip C,...] [--noise Z,...] [--seeds S,...] [key=value ...]`: real
images (fashion_mnist_small, fewer of them, fewer rounds), UM-pFSSL, one run for each pair of
`privacy.clip` and `privacy.noise`; clip 0 is the run without either. `length`: L2 norm of what one
upload changes, before it is clipped, as a site's own log says it: median and greatest of all
uploads. The table is docs/SECURITY.md's.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from bench.record import Row, save
from fedapp.drivers.loopback import run_loopback
from fedapp.experiment.config import load_experiment, parse_overrides
from fedapp.experiment.runfolder import RunFolder

PRESET = "fashion_mnist_small"
SETTING = (
    "data.subset=5000",
    "split.num_clients=10",
    "training.warmup_epochs=10",
    "rounds.num_rounds=6",
)


class Lengths(logging.Handler):
    """Collects the lengths of changes that sites say in their logs."""

    def __init__(self) -> None:
        """Begin without any."""
        super().__init__()
        self.found: list[float] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Take the length from a line of `fedapp.site.privacy`."""
        if "change of length" in record.msg and isinstance(record.args, tuple):
            self.found.append(float(str(record.args[2])))


@contextmanager
def lengths() -> Iterator[list[float]]:
    """Collect them while the block runs."""
    log, handler = logging.getLogger("fedapp.site.privacy"), Lengths()
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield handler.found
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


def cell(clip: float, noise: float, seed: int, overrides: list[str]) -> Row:
    """Run once; return accuracies in %, epsilon of the site that sent most, and lengths."""
    own = (f"privacy.clip={clip}", f"privacy.noise={noise}", f"seed={seed}")
    with TemporaryDirectory() as out, lengths() as changes:
        texts = [*SETTING, *own, f"runtime.out={out}", *overrides]
        _, folder = run_loopback(load_experiment(PRESET, parse_overrides(texts)))
        rows = RunFolder(folder).per_site()
    epsilons = [row["epsilon"] for row in rows if row.get("epsilon") is not None]
    return {
        "clip": clip,
        "noise": noise,
        "seed": seed,
        "accuracy_%": round(100 * fmean(row["final_accuracy"] for row in rows), 1),
        "warmup_%": round(100 * fmean(row["warmup_accuracy"] for row in rows), 1),
        "epsilon": max(epsilons) if epsilons else None,
        "length_median": round(median(changes), 2) if changes else None,
        "length_max": round(max(changes), 2) if changes else None,
    }


def main(
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...")] = None,
    clip: Annotated[str, typer.Option(help="values of privacy.clip; 0: without")] = "0,10,3,1",
    noise: Annotated[str, typer.Option(help="values of privacy.noise")] = "0,0.003,0.01,0.1",
    seeds: Annotated[str, typer.Option(help="seeds")] = "0,1",
    name: Annotated[str, typer.Option(help="file in bench/results")] = "privacy",
) -> None:
    """Run all pairs, and once without either."""
    clips, noises = (list(map(float, text.split(","))) for text in (clip, noise))
    pairs = [(c, z) for c in clips for z in (noises if c else [0.0])]
    rows = [
        cell(c, z, seed, overrides or []) for seed in map(int, seeds.split(",")) for c, z in pairs
    ]
    save(name, rows, {"setting": [PRESET, *SETTING, *(overrides or [])]})


if __name__ == "__main__":
    typer.run(main)
