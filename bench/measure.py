"""Time alternatives side by side: in every repetition each runs once, in a new order.

The speed of a machine drifts, but hardly within one repetition; so ratios are taken there.
"""

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, TypeVar

import numpy as np
import torch

K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True)
class Times:
    """Seconds of each counted repetition, in order."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median in seconds."""
        return median(self.seconds)

    def row(self, unit: str = "s", each: float = 1) -> dict[str, float | int]:
        """Return n, median, minimum and maximum in a unit, of which a second has `each`."""
        values = {"median": self.median, "min": min(self.seconds), "max": max(self.seconds)}
        rounded = {f"{name}_{unit}": round(each * value, 6) for name, value in values.items()}
        return {"n": len(self.seconds), **rounded}

    def over(self, other: "Times") -> dict[str, float]:
        """Return the ratio self / other: median, minimum and maximum over the repetitions."""
        ratios = [a / b for a, b in zip(self.seconds, other.seconds, strict=True)]
        values = {"ratio": median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios)}
        return {name: round(value, 3) for name, value in values.items()}


def in_turns(
    cases: Mapping[K, Callable[[], T]], repetitions: int, warmups: int = 0
) -> dict[K, list[T]]:
    """Run every case `warmups` times, then `repetitions` times; return what the latter returned."""
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
    """Run every case `warmups` times, then `repetitions` times; return the times of the latter.

    device: if it is a GPU, its work is awaited before the clock is read.
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
    """Return a row for each case: `same`, its name, its times, its ratio over case `base`."""
    return [
        {**same, of: name, **taken.row(), **taken.over(times[base])}
        for name, taken in times.items()
    ]
