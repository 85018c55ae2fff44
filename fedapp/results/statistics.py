"""The statistics of a comparison: means over seeds, paired tests, sites that gain and lose.

Pure functions of numbers; accuracies and differences are shares, as everywhere in the files.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import TypeVar

from scipy.stats import t as student

CONFIDENCE = 0.95
"""Of every interval, unless another is asked for."""

Unit = TypeVar("Unit", bound=Hashable)

_ROUNDING = 1e-12
"""A spread of shares below this is floating point's, not the seeds'."""


@dataclass(frozen=True)
class Mean:
    """Mean of n >= 1 values; sd: sample standard deviation (n - 1), None for one value."""

    value: float
    sd: float | None
    n: int


@dataclass(frozen=True)
class Difference:
    """Mean of n >= 1 paired differences, first less second.

    low, high: ends of the t-interval; p: of the two-sided paired t-test. Both None where the
    differences do not vary (one pair, or a method against itself): then t has nothing to divide by.
    """

    value: float
    n: int
    low: float | None = None
    high: float | None = None
    p: float | None = None


@dataclass(frozen=True)
class Tally:
    """Of n pairs: in how many the first is higher, and lower, by more than was asked for."""

    higher: int
    lower: int
    n: int

    @property
    def lower_share(self) -> float | None:
        """Share of pairs in which the first is lower; None without pairs."""
        return self.lower / self.n if self.n else None


def mean_sd(values: Iterable[float]) -> Mean | None:
    """Return mean and sample standard deviation; None without values."""
    listed = list(values)
    if not listed:
        return None
    return Mean(fmean(listed), stdev(listed) if len(listed) > 1 else None, len(listed))


def paired_difference(
    first: Mapping[Unit, float], second: Mapping[Unit, float], confidence: float = CONFIDENCE
) -> Difference | None:
    """Compare two methods over the units, such as seeds, that both have; None where there is none.

    Mean d and sample deviation s of the differences: the interval is
    d -+ t((1 + confidence) / 2, n - 1) s / sqrt(n), p that of t = d sqrt(n) / s.
    """
    differences = [value - second[unit] for unit, value in first.items() if unit in second]
    summary = mean_sd(differences)
    if summary is None:
        return None
    if summary.sd is None or summary.sd < _ROUNDING:
        return Difference(summary.value, summary.n)
    error = summary.sd / sqrt(summary.n)
    freedom = summary.n - 1
    reach = float(student.ppf((1 + confidence) / 2, freedom)) * error
    p = 2 * float(student.sf(abs(summary.value) / error, freedom))
    return Difference(summary.value, summary.n, summary.value - reach, summary.value + reach, p)


def interval_factor(n: int) -> float:
    """Return how many standard deviations of the differences the interval reaches each way."""
    return float(student.ppf((1 + CONFIDENCE) / 2, n - 1)) / sqrt(n)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return Holm's step-down corrected p-values (Holm 1979), in the order given.

    The i-th smallest of m is multiplied by m - i + 1, kept monotone and at most 1. None, a test
    that could not be made, stays None and is not counted.
    """
    made = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    least = 0.0
    for rank, (p, place) in enumerate(made):
        least = max(least, min(1.0, p * (len(made) - rank)))
        corrected[place] = least
    return corrected


def tally(pairs: Iterable[tuple[float, float]], margin: float = 0.0) -> Tally:
    """Count the pairs whose first is higher, and lower, than the second by more than `margin`.

    A difference of the margin itself does not count, whatever floating point makes of it.
    """
    differences = [first - second for first, second in pairs]
    least = margin + _ROUNDING
    higher = sum(difference > least for difference in differences)
    lower = sum(difference < -least for difference in differences)
    return Tally(higher, lower, len(differences))
