"""Rounds of the paper's setting with several sites at a time, each in a process."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

from bench.record import Row
from bench.runs import kept
from fedapp.drivers.loopback import run_loopback
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.records import Records

AT_A_TIME = (1, 2, 4, 8)
ROUNDS = 3
"""Rounds that are measured, behind the warm-up and a first one, in which processes start."""


def rows(
    experiment: Callable[..., Experiment], folder: Path, over: Callable[[], bool], toy: bool
) -> list[Row] | None:
    """Return seconds a round, eager and recorded, by sites at a time; None where time is over.

    experiment: takes overrides. folder: keeps each row as soon as it is measured.
    """
    found: list[Row] = []
    for graphs in (False, True):
        for number in AT_A_TIME[: 2 if toy else None]:
            path = folder / f"{number}{'-recorded' if graphs else ''}.json"
            if over() and not path.exists():
                return None
            one = experiment(
                runtime__workers=number, runtime__graphs=graphs, rounds__num_rounds=ROUNDS + 1
            )
            found.append(kept(path, partial(measured, one, folder / "run")))
    return found


def measured(experiment: Experiment, folder: Path) -> dict[str, Any]:
    """Run it in a folder that is made anew; return its row. seconds: of a round, by its parts."""
    rmtree(folder, ignore_errors=True)
    runtime = replace(
        experiment.runtime, out=str(folder), run_name="it", resume=False, models=False
    )
    run_loopback(replace(experiment, runtime=runtime), lambda *_: "")
    rounds = [row["seconds"] for row in Records(folder / "it").sites()]
    each = [sum(seconds.values()) for seconds in rounds[2:]]
    rmtree(folder)
    return {
        "sites at a time": runtime.workers,
        "graphs": "recorded" if runtime.graphs else "eager",
        "n": len(each),
        "median_s": sorted(each)[len(each) // 2],
        "min_s": min(each),
        "max_s": max(each),
        "server_s": round(sum(seconds["server"] for seconds in rounds[2:]) / len(each), 3),
        "warm-up of all sites, s": round(sum(rounds[0].values()), 3),
    }
