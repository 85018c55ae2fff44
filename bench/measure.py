"""Measure alternatives side by side: in every repetition each runs once, in a new order.

A machine's speed drifts; a ratio taken within one repetition does not feel it.
"""

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch

K = TypeVar("K")
T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")


@dataclass(frozen=True)
class Times:
    """Seconds of each counted repetition, in their order."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median in seconds."""
        return median(self.seconds)

    def row(self, unit: str = "s", each: float = 1) -> dict[str, float | int]:
        """Return n, median, least and greatest; in another unit, of which `each` are a second."""
        values = {"median": self.median, "min": min(self.seconds), "max": max(self.seconds)}
        rounded = {f"{name}_{unit}": round(each * value, 6) for name, value in values.items()}
        return {"n": len(self.seconds), **rounded}

    def over(self, other: "Times") -> dict[str, float]:
        """Return the ratio self / other: median, least and greatest over the repetitions."""
        ratios = [a / b for a, b in zip(self.seconds, other.seconds, strict=True)]
        values = {"ratio": median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios)}
        return {name: round(value, 3) for name, value in values.items()}


def in_turns(
    cases: Mapping[K, Callable[[], T]], repetitions: int, warmups: int = 0
) -> dict[K, list[T]]:
    """Run every case `warmups` times, then `repetitions` times; return what these gave."""
    order = np.random.default_rng(0)
    names = list(cases)
    found: dict[K, list[T]] = {name: [] for name in names}
    for repetition in range(-warmups, repetitions):
        for index in order.permutation(len(names)).tolist():
            given = cases[names[index]]()
            if repetition >= 0:
                found[names[index]].append(given)
    return found


def side_by_side(
    cases: Mapping[K, Callable[[], object]],
    repetitions: int,
    warmups: int = 1,
    device: torch.device | None = None,
) -> dict[K, Times]:
    """Run every case `warmups` times, then `repetitions` times counted; return its times.

    device: a GPU is waited for before the clock is read.
    """
    timed = {name: partial(_timed, run, device) for name, run in cases.items()}
    taken = in_turns(timed, repetitions, warmups)
    return {name: Times(tuple(seconds)) for name, seconds in taken.items()}


def _timed(run: Callable[[], object], device: torch.device | None) -> float:
    gc.collect()
    _wait(device)
    began = time.perf_counter()
    run()
    _wait(device)
    return time.perf_counter() - began


def _wait(device: torch.device | None) -> None:
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)


def beside(
    times: Mapping[str, Times], base: str, of: str = "way", **same: Any
) -> list[dict[str, Any]]:
    """Return a row for each case: what all share, its name, its times and its ratio over `base`."""
    return [
        {**same, of: name, **taken.row(), **taken.over(times[base])}
        for name, taken in times.items()
    ]
