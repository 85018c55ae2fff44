"""Does the server's memory grow with the sites or with the rounds?

`python -m bench.scale [many] [long] [--driver flower] [--driver loopback] [--quick]`

- many: 100 and 1,000 sites with the 26 MB network (ResNet-9 of width 64), one or two images each,
  so that the models are what counts; three rounds after the warm-up, in which every site trains.
  Up to 40 GB of disk under $TMPDIR, removed afterwards.
- long: 300 rounds of 20 sites with a small network, and what grows after the first 100.

Whole runs in processes of their own, watched from outside (bench/watch.py); one figure each, beside
the results. `--quick`: toy sizes.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby, pairwise
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import linregress
from scipy.stats import t as student

from bench.command import Quick, carry_out
from bench.record import Row, save
from bench.watch import Watched, watch
from fedapp.data.manifest import TEST, TRAIN, VAL, Manifest

PRESET = "digits_demo"
DIGITS = 1797
"""Images of the data set."""
BLOCKS = 10
"""Of rounds, whose means a line is fitted to."""
COLOURS = {
    "server": "tab:red",
    "server and sites": "tab:red",
    "sites": "tab:blue",
    "Ray": "tab:green",
    "SuperLink and launcher": "tab:purple",
    "measuring before the start": "tab:orange",
}


class Driver(StrEnum):
    """Who carries the messages."""

    flower = "flower"
    loopback = "loopback"


class Measurement(StrEnum):
    """What is measured."""

    many = "many"
    long = "long"


@dataclass(frozen=True)
class Sizes:
    """few, many: sites of the two runs that are compared. rounds: of each of them."""

    few: int = 100
    many: int = 1000
    width: int = 64
    rounds: int = 3
    long_sites: int = 20
    long_rounds: int = 300
    settled: int = 100
    """Rounds of the long run that are left out of the fit."""
    long_every_s: float = 0.5


TOY = Sizes(
    few=4, many=8, width=4, rounds=1, long_sites=5, long_rounds=30, settled=10, long_every_s=0.05
)


def main(
    parts: Annotated[list[Measurement] | None, typer.Argument()] = None,
    driver: Annotated[list[Driver] | None, typer.Option()] = None,
    quick: Quick = False,
) -> None:
    """Run both parts with both drivers, or those named."""
    for part in parts or Measurement:
        measure = {Measurement.many: measure_many, Measurement.long: measure_long}[part]
        measure(driver or list(Driver), TOY if quick else Sizes(), quick)


def measure_many(drivers: Sequence[Driver], sizes: Sizes, quick: bool) -> None:
    """Run few and many sites; save the peak memory of both, and what a further site takes."""
    runs: dict[str, Watched] = {}
    rows: list[Row] = []
    for driver in drivers:
        pair = {sites: many_sites(driver, sites, sizes) for sites in (sizes.few, sizes.many)}
        rows += compared(driver, pair)
        runs |= {f"{driver}, K = {sites:,}": run for sites, run in pair.items()}
    notes = {
        "network": f"ResNet-9 of width {sizes.width}",
        "seconds": {name: [round(s) for s in run.round_s] for name, run in runs.items()},
        "series": {name: run.lines() for name, run in runs.items()},
    }
    save("scale-many", rows, notes, figure(runs, every=1), quick)


def measure_long(drivers: Sequence[Driver], sizes: Sizes, quick: bool) -> None:
    """Run many rounds; save what grows after the first of them."""
    runs = {str(driver): many_rounds(driver, sizes) for driver in drivers}
    rows = [row for name, run in runs.items() for row in growth_rows(name, run, sizes.settled)]
    notes = {
        "rounds": sizes.long_rounds,
        "fitted_from_round": sizes.settled,
        "series": {name: run.lines() for name, run in runs.items()},
    }
    save("scale-long", rows, notes, figure(runs, every=50), quick)


# --- the runs -------------------------------------------------------------------------------------


def many_sites(driver: Driver, sites: int, sizes: Sizes) -> Watched:
    """Run the large network on this many sites."""
    with TemporaryDirectory(prefix="bench-") as folder:
        manifest = Path(folder) / "manifest.safetensors"
        split = one_image_each(sites)
        split.save(manifest)
        settings = [
            f"split.num_clients={sites}",
            f"split.manifest={manifest}",
            f"data.subset={len(split.site)}",
            f"model.width={sizes.width}",
            f"rounds.num_rounds={sizes.rounds}",
            "rounds.sample_rate=0.1",
            "training.local_epochs=1",
            "training.warmup_epochs=1",
            "method.preset=um_pfssl",
            "method.mc_samples=2",
        ]
        return _watched(driver, settings, Path(folder), every_s=1.0)


def many_rounds(driver: Driver, sizes: Sizes) -> Watched:
    """Run the small network for many rounds."""
    settings = [
        f"split.num_clients={sizes.long_sites}",
        f"rounds.num_rounds={sizes.long_rounds}",
        "rounds.sample_rate=0.2",
        "model.width=2",
        "training.local_epochs=1",
        "training.warmup_epochs=5",
    ]
    with TemporaryDirectory(prefix="bench-") as folder:
        return _watched(driver, settings, Path(folder), sizes.long_every_s)


def one_image_each(sites: int) -> Manifest:
    """Deal every site a labelled image and every second an unlabelled one; the rest is to evaluate.

    sites: at most 1,000. Fewer sites get as many images each.
    """
    place = np.arange(DIGITS * sites // 1000)
    training = place < sites + sites // 2
    return Manifest(
        dataset="digits",
        num_clients=sites,
        num_classes=10,
        seed=0,
        site=(place % sites).astype(np.int32),
        split=np.where(training, TRAIN, np.where(place % 3, TEST, VAL)).astype(np.uint8),
        visible=(place < sites) | ~training,
    )


def _watched(driver: Driver, settings: Sequence[str], folder: Path, every_s: float) -> Watched:
    module = ["fedapp.drivers.flower_local"] if driver == Driver.flower else ["fedapp.cli", "run"]
    own = ["runtime.device=cpu", f"runtime.out={folder}", "runtime.run_name=run"]
    command = [sys.executable, "-m", *module, PRESET, *settings, *own]
    return watch(command, folder / "run", every_s)


# --- what they tell -------------------------------------------------------------------------------


def compared(driver: str, pair: Mapping[int, Watched]) -> list[Row]:
    """Return the peak of each role in both runs, and what one site more takes, in KiB."""
    few, many = sorted(pair)

    def row(of: str, peaks: Mapping[int, float]) -> Row:
        further = (peaks[many] - peaks[few]) * 1024 / (many - few)
        columns = {f"peak_mib_{sites}_sites": round(peaks[sites], 1) for sites in (few, many)}
        return {"driver": driver, "of": of, **columns, "kib_per_further_site": round(further, 1)}

    def highest(role: str) -> Row:
        values = {
            k: max(s.highest_mib.get(role, 0) for s in run.samples) for k, run in pair.items()
        }
        return row(f"{role}: largest process, shared pages whole", values)

    roles = pair[many].roles
    return [
        *(
            row(role, {k: max(s.mib.get(role, 0) for s in r.samples) for k, r in pair.items()})
            for role in roles
        ),
        *(highest(role) for role in roles if role.startswith("server")),
        row("all processes", {k: max(s.total_mib for s in r.samples) for k, r in pair.items()}),
        row("pool on disk", {k: max(s.pool_mib for s in r.samples) for k, r in pair.items()}),
    ]


def growth_rows(driver: str, run: Watched, settled: int) -> list[Row]:
    """Return what grows from round `settled` on: memory by role, disk and the time of a round."""
    last = len(run.round_s) - 1
    fitted = [s for s in run.samples if settled <= s.rounds < last]
    rounds = [s.rounds for s in fitted]
    series = {
        **{f"{role}, MiB": [s.mib.get(role, 0) for s in fitted] for role in run.roles},
        "all processes, MiB": [s.total_mib for s in fitted],
        "pool on disk, MiB": [s.pool_mib for s in fitted],
    }
    rows = [_growth_row(driver, of, rounds, y) for of, y in series.items() if any(y)]
    times = run.round_s[settled + 1 :]
    return [*rows, _growth_row(driver, "time of a round, s", range(settled, last), times)]


def _growth_row(driver: str, of: str, rounds: Sequence[int], values: Sequence[float]) -> Row:
    slope, around = growth(rounds, values)
    return {
        "driver": driver,
        "of": of,
        "mean": round(fmean(values), 3),
        "per_100_rounds": round(100 * slope, 4),
        "plus_minus": round(100 * around, 4),
    }


def growth(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Return the slope of a line through the means of `BLOCKS` blocks, and half its 95 % interval.

    x: ascending, at least `BLOCKS` values. Neighbours in time are alike, the means of long blocks
    nearly independent: an interval from single values would be too narrow.
    """
    edges = [len(x) * block // BLOCKS for block in range(BLOCKS + 1)]
    means = [(fmean(x[a:b]), fmean(y[a:b])) for a, b in pairwise(edges)]
    fit = linregress(*zip(*means, strict=True))
    return float(fit.slope), float(fit.stderr * student.ppf(0.975, BLOCKS - 2))


# --- the figure -----------------------------------------------------------------------------------


def figure(runs: Mapping[str, Watched], every: int) -> Figure:
    """Return one panel per run: memory by role and the pool on disk against time.

    every: which rounds are marked.
    """
    across = 2 if len(runs) > 1 else 1
    down = -(-len(runs) // across)
    drawn = Figure(figsize=(6.6 * across, 4.2 * down), layout="constrained")
    for index, (name, run) in enumerate(runs.items()):
        axes = drawn.add_subplot(down, across, index + 1)
        _panel(axes, run, every)
        axes.set_title(name)
    return drawn


def _panel(axes: Axes, run: Watched, every: int) -> None:
    seconds = [s.seconds for s in run.samples]
    for role in run.roles:
        values = [s.mib.get(role, 0) for s in run.samples]
        axes.plot(seconds, values, label=role, color=COLOURS[role])
    axes.set_xlabel("time, s")
    axes.set_ylabel("memory (PSS), MiB")
    axes.set_ylim(bottom=0)
    disk = axes.twinx()
    disk.plot(seconds, [s.pool_mib for s in run.samples], "k:", label="pool on disk (right)")
    disk.set_ylabel("pool on disk, MiB")
    disk.set_ylim(bottom=0)
    for rounds, group in groupby(run.samples, lambda s: s.rounds):
        if rounds >= 0 and rounds % every == 0:
            began = next(group).seconds
            axes.axvline(began, color="0.8", zorder=0)
            words = "warm-up" if rounds == 0 else f"round {rounds}"
            place = axes.get_xaxis_transform()
            axes.text(
                began, 0.02, f"{words} done", rotation=90, ha="right", transform=place, size=7
            )
    handles = [*axes.get_lines()[: len(run.roles)], *disk.get_lines()]
    axes.legend(
        handles, [str(line.get_label()) for line in handles], loc="center right", fontsize=8
    )


if __name__ == "__main__":
    carry_out(main)
