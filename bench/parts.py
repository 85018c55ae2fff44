"""What does a site's round cost, part by part, where sites have a dozen images?

`python -m bench.parts [--rounds N] [--quick]`: FedAvg of `bench.peers`, 1,000 sites x 14 images, of
which half train; CPU time of this process, microseconds for each site and round, with and without
evaluation. No part holds another one; the rest is what no part holds. Beside the sum of all stands
that of a loop in this project's steps. As many rounds as in `bench.peers` are a warm-up.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import torch

from bench.command import Quick, Rounds, carry_out
from bench.measure import watched
from bench.peers import ours, steps
from bench.peers.__main__ import SETTINGS
from bench.peers.marks import EnoughError, Marks
from bench.peers.problem import Problem, write
from bench.record import Cells, save
from fedapp.drivers import calls
from fedapp.messages import store
from fedapp.methods import base
from fedapp.methods.averaging import base as averaging
from fedapp.server import engine, phases
from fedapp.server.checkpoint import Checkpoint
from fedapp.server.pool import ModelPool
from fedapp.server.roundpool import RoundPool
from fedapp.server.standings import Standings
from fedapp.site import holdings

PARTS: dict[str, Sequence[tuple[Any, str]]] = {
    "network: training": [(averaging, "descend")],
    "network: answers to images": [(base, "predict_each")],
    "network: models loaded": [(base, "assign")],
    "average of models": [(RoundPool, "average")],
    "right answers counted": [(base, "evaluation")],
    "new model copied, looked through for NaN": [(base.SiteContext, "params")],
    "upload as bytes": [(holdings, "to_bytes")],
    "upload hashed": [(store.ModelStore, "_digest_of")],
    "upload written": [(store, "write_atomic")],
    "uploads brought to the disk": [(ModelPool, "settle")],
    "upload read and checked": [(phases, "from_bytes")],
    "messages written and read": [
        (phases, "encode"), (calls, "encode"), (calls, "delivered"),
    ],
    "answers checked": [(phases, "check_reply")],
    "records and checkpoint": [
        (Standings, "close_round"), (engine, "sites_row"), (Checkpoint, "save"),
    ],
    "old models removed": [(ModelPool, "keep")],
}  # fmt: skip
"""Functions of each part, as who calls them finds them."""
ALL, REST, LOOP = "all", "rest", "all, of the loop in our steps"


def main(rounds: Rounds = 5, quick: Quick = False) -> None:
    """Measure and save the table."""
    if quick:
        rounds = 1
    torch.set_num_threads(1)
    setting = replace(SETTINGS[-1], sites=20) if quick else SETTINGS[-1]
    rows: dict[str, Cells] = {name: {"part": name} for name in (*PARTS, REST, ALL, LOOP)}
    with TemporaryDirectory(prefix="bench-") as out:
        folder = Path(out) / "problem"
        write(setting, folder)
        for evaluate in (False, True):
            problem = Problem.load(folder, evaluate, setting.warm_up + rounds)
            spent = by_part(problem)
            for name, seconds in spent.items():
                column = f"{'with' if evaluate else 'without'} evaluation, us"
                rows[name][column] = round(1e6 * median(seconds) / setting.sites, 1)
    save("parts", list(rows.values()), {"sites": setting.sites, "rounds": rounds}, quick=quick)


def by_part(problem: Problem) -> dict[str, list[float]]:
    """Return the CPU seconds of each round that counts, by part."""
    with watched(PARTS) as watches:
        laps = run(ours, problem, lambda: {name: watch.inside for name, watch in watches.items()})
    found = {name: [lap[name] for lap in laps] for name in (*PARTS, ALL)}
    parts = zip(*(found[name] for name in PARTS), strict=True)
    found[REST] = [all_of - sum(each) for all_of, each in zip(found[ALL], parts, strict=True)]
    return found | {LOOP: [lap[ALL] for lap in run(steps, problem, dict)]}


def run(
    who: ModuleType, problem: Problem, read: Callable[[], dict[str, float]]
) -> list[dict[str, float]]:
    """Run a contender; return what each round that counts added to what `read` reads, and ALL."""
    marks = Marks(problem.rounds, problem.classes, problem.folder / "model.safetensors")
    at: list[dict[str, float]] = []

    def mark(model: Callable[[], Any]) -> None:
        at.append({ALL: time.process_time(), **read()})
        marks(model)

    with redirect_stdout(StringIO()):
        try:
            who.run(problem, mark)
        except EnoughError:
            pass
    return [
        {name: value - before[name] for name, value in after.items()}
        for before, after in pairwise(at[problem.setting.warm_up :])
    ]


if __name__ == "__main__":
    carry_out(main)
