"""What a cell's curve, its test accuracy round by round, says besides single rounds.

Rounds: rows of `metrics.jsonl`. Round 0, the warm-up, is no part of the curve; nor is a round in
which nothing was measured.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

LAST = 5
"""Rounds at the end of a run whose mean stands beside the last round: one round may be lucky."""


def last_rounds(rounds: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the mean test accuracy of the last `LAST` rounds, of fewer where there are fewer.

    A share in [0, 1]; None without a round.
    """
    curve = _curve(rounds)
    return fmean(curve[-LAST:]) if curve else None


def largest_fall(rounds: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the most that mean test accuracy loses from one round to the next.

    A share in [0, 1], 0 where it never falls; None with fewer than two rounds.
    """
    curve = _curve(rounds)
    return max(0.0, *(a - b for a, b in pairwise(curve))) if len(curve) > 1 else None


def _curve(rounds: Sequence[Mapping[str, Any]]) -> list[float]:
    every = (row.get("mean_test_accuracy") for row in rounds if row["round"] > 0)
    return [accuracy for accuracy in every if accuracy is not None]
