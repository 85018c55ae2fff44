"""The statistics of runs: means over seeds, paired tests, sites that gain and lose, curves.

Pure functions of numbers; accuracies and differences are shares, as everywhere in the files.

What counts as one observation is a run, that is a seed. The sites of a run are not independent:
they share a model and a split. So a method's accuracy in a run is its mean over the sites, and
methods are compared over runs. What holds is said of other seeds, not of other data.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import sqrt
from statistics import fmean, median, stdev
from typing import Any, TypeVar

from scipy.stats import t as student
from scipy.stats import ttest_rel

CONFIDENCE = 0.95
"""Of every interval, unless another is asked for."""

Unit = TypeVar("Unit", bound=Hashable)

Units = Mapping[tuple[int, int], float]
"""(seed, site) -> accuracy of one method there."""
Runs = Mapping[int, float]
"""Seed -> mean accuracy of one method over the sites of that run."""

LAST_ROUNDS = 5
"""Rounds at the end of a run whose mean stands beside the last round: one round may be lucky."""

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

    @property
    def reach(self) -> float | None:
        """Half the width of the interval; None without one."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


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
    pairs = [(value, second[unit]) for unit, value in first.items() if unit in second]
    summary = mean_sd(ours - theirs for ours, theirs in pairs)
    if summary is None:
        return None
    if summary.sd is None or summary.sd < _ROUNDING:
        return Difference(summary.value, summary.n)
    test = ttest_rel(*zip(*pairs, strict=True))
    low, high = test.confidence_interval(confidence)
    return Difference(summary.value, summary.n, float(low), float(high), float(test.pvalue))


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


@dataclass(frozen=True)
class Telling:
    """The method with the highest mean, and the others beside it.

    differences: each other method less the best, over the runs of all, with a 95 % interval of its
    own. It is None where there is one run, or all differ alike. corrected: their p-values by Holm
    over all pairs of methods, since the best is chosen by the same numbers.
    """

    best: str
    differences: Mapping[str, Difference]
    corrected: Mapping[str, float | None]

    @property
    def behind(self) -> list[str]:
        """Methods that are shown to be worse than the best."""
        return [m for m, p in self.corrected.items() if p is not None and p < 1 - CONFIDENCE]

    @property
    def open(self) -> list[str]:
        """Methods that cannot be told from the best."""
        return [method for method in self.differences if method not in self.behind]

    @property
    def runs(self) -> int:
        """Number of runs that every method has."""
        return min(difference.n for difference in self.differences.values())

    @property
    def reach(self) -> float | None:
        """Median half-width of the intervals: smaller differences are not seen; None: not known."""
        halves = [r for d in self.differences.values() if (r := d.reach) is not None]
        return median(halves) if halves else None


def level(comparisons: int) -> float:
    """Return the confidence of each of so many intervals (>= 1) that hold together at 95 %.

    Bonferroni's 1 - 0.05 / n.
    """
    return 1 - (1 - CONFIDENCE) / comparisons


def by_run(found: Mapping[str, Units]) -> dict[str, dict[int, float]]:
    """Return each method's mean accuracy by seed, over the sites that all methods have there."""
    shared = set.intersection(*map(set, found.values())) if found else set()
    seeds = sorted({seed for seed, _ in shared})
    return {
        method: {s: fmean(units[unit] for unit in shared if unit[0] == s) for s in seeds}
        for method, units in found.items()
    }


def telling(found: Mapping[str, Units]) -> Telling | None:
    """Compare methods over the runs that all of them have; None below two methods or one run."""
    runs = by_run(found)
    if len(runs) < 2 or not all(runs.values()):
        return None
    best = max(runs, key=lambda method: fmean(runs[method].values()))
    pairs = list(combinations(runs, 2))
    tests = [paired_difference(runs[one], runs[other]) for one, other in pairs]
    p_of = dict(zip(map(frozenset, pairs), holm([t.p if t else None for t in tests]), strict=True))
    less = {m: paired_difference(of, runs[best]) for m, of in runs.items() if m != best}
    differences = {method: found for method, found in less.items() if found is not None}
    return Telling(
        best, differences, {method: p_of[frozenset({method, best})] for method in differences}
    )


def tally(pairs: Iterable[tuple[float, float]], margin: float = 0.0) -> Tally:
    """Count the pairs whose first is higher, and lower, than the second by more than `margin`.

    A difference of the margin itself does not count, whatever floating point makes of it.
    """
    differences = [first - second for first, second in pairs]
    least = margin + _ROUNDING
    higher = sum(difference > least for difference in differences)
    lower = sum(difference < -least for difference in differences)
    return Tally(higher, lower, len(differences))


def last_rounds(rounds: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the mean test accuracy of the last `LAST_ROUNDS`, of fewer where there are fewer.

    A share in [0, 1]; None without a round.
    """
    curve = _curve(rounds)
    return fmean(curve[-LAST_ROUNDS:]) if curve else None


def largest_fall(rounds: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the most that mean test accuracy loses from one round to the next.

    A share in [0, 1], 0 where it never falls; None with fewer than two rounds.
    """
    curve = _curve(rounds)
    return max(0.0, *(a - b for a, b in pairwise(curve))) if len(curve) > 1 else None


def _curve(rounds: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return a run's test accuracy round by round, of rows of metrics.jsonl.

    Round 0, the warm-up, is no part of it; nor is a round in which nothing was measured.
    """
    every = (row.get("mean_test_accuracy") for row in rounds if row["round"] > 0)
    return [accuracy for accuracy in every if accuracy is not None]
