"""What does a searching round of a wide network cost outside the network?

`python -m bench.outside [--rounds N] [--name NAME] [key=value ...]`: 20 sites with 140 images of
Fashion-MNIST each and models of 26 MB (ResNet-9 of width 64), loopback driver, one process. Half of
the sites train in a round, all look for helpers. CPU time of the process, of which inside: scoring,
evaluation and training; outside: all else, such as models read, checked, hashed, averaged and
written. Every round after the warm-up counts once.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from itertools import pairwise
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, ParamSpec, TypeVar
from unittest.mock import patch

import typer

from bench.record import Row, save
from fedapp.drivers.loopback import run_loopback
from fedapp.experiment.config import load_experiment, parse_overrides
from fedapp.ground.progress import Progress
from fedapp.methods import base
from fedapp.methods.um_pfssl import method

PRESET = "fashion_mnist_small"
SETTING = (
    "model.width=64",
    "data.subset=2800",
    "training.local_epochs=1",
    "training.warmup_epochs=1",
    "method.search_rounds=100",
    "method.update_every=100",
    "runtime.device=cpu",
    "data.download=false",
)
NETWORK = (
    (method, "mc_probabilities"),
    (method, "predict"),
    (base, "predict"),
    (base, "train"),
)
"""Functions in which the network works; none calls another one."""

P = ParamSpec("P")
R = TypeVar("R")


class Stopwatch:
    """CPU seconds of this process, and those of them that were spent inside some functions."""

    def __init__(self) -> None:
        self.inside = 0.0
        self.laps: list[tuple[float, float]] = []

    def timed(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return the function, whose time counts as inside."""

        @wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            began = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.inside += time.process_time() - began

        return run

    def lap(self) -> None:
        """Note the time at the end of a round."""
        self.laps.append((time.process_time(), self.inside))


def main(
    overrides: Annotated[list[str] | None, typer.Argument()] = None,
    rounds: int = 4,
    name: str = "outside",
) -> None:
    """Run once; save CPU seconds of a round, in all, inside and outside."""
    watch = Stopwatch()
    with TemporaryDirectory(prefix="bench-") as out, ExitStack() as stack:
        for module, function in NETWORK:
            timed = watch.timed(getattr(module, function))
            stack.enter_context(patch.object(module, function, timed))
        stack.enter_context(patch.object(Progress, "round_done", lambda _, row: watch.lap()))
        own = [f"rounds.num_rounds={rounds}", f"runtime.out={out}"]
        settings = parse_overrides(SETTING) | parse_overrides([*(overrides or []), *own])
        run_loopback(load_experiment(PRESET, settings))
    laps = list(pairwise(watch.laps))
    whole = [after[0] - before[0] for before, after in laps]
    inside = [after[1] - before[1] for before, after in laps]
    outside = [all_of - part for all_of, part in zip(whole, inside, strict=True)]
    save(
        name,
        [_row("a round", whole, whole), _row("outside the network", outside, whole)],
        {"preset": PRESET, "setting": SETTING},
    )


def _row(what: str, seconds: list[float], of: list[float]) -> Row:
    shares = [100 * part / whole for part, whole in zip(seconds, of, strict=True)]
    return {
        "what": what,
        "n": len(seconds),
        "median_s": round(median(seconds), 3),
        "min_s": round(min(seconds), 3),
        "max_s": round(max(seconds), 3),
        "percent_of_round": round(median(shares), 1),
    }


if __name__ == "__main__":
    typer.run(main)
