"""Time alternatives side by side: in every repetition each runs once, in a new order.

A machine's speed drifts; a ratio taken within one repetition does not feel it.
"""

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch


@dataclass(frozen=True)
class Times:
    """Seconds of each counted repetition, in their order."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median in seconds."""
        return median(self.seconds)

    def row(self) -> dict[str, float | int]:
        """Return n, median, least and greatest, in seconds."""
        return {
            "n": len(self.seconds),
            "median_s": round(self.median, 6),
            "min_s": round(min(self.seconds), 6),
            "max_s": round(max(self.seconds), 6),
        }

    def over(self, other: "Times") -> dict[str, float]:
        """Return the ratio self / other: median, least and greatest over the repetitions."""
        ratios = [a / b for a, b in zip(self.seconds, other.seconds, strict=True)]
        values = {"ratio": median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios)}
        return {name: round(value, 3) for name, value in values.items()}


def side_by_side(
    cases: Mapping[str, Callable[[], object]],
    repetitions: int,
    warmups: int = 1,
    device: torch.device | None = None,
) -> dict[str, Times]:
    """Run every case `warmups` times, then `repetitions` times counted; return its times.

    device: a GPU is waited for before the clock is read.
    """
    order = np.random.default_rng(0)
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for repetition in range(-warmups, repetitions):
        for index in order.permutation(len(cases)).tolist():
            name = list(cases)[index]
            gc.collect()
            _wait(device)
            began = time.perf_counter()
            cases[name]()
            _wait(device)
            if repetition >= 0:
                taken[name].append(time.perf_counter() - began)
    return {name: Times(tuple(seconds)) for name, seconds in taken.items()}


def _wait(device: torch.device | None) -> None:
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
