"""Statistics of runs: means over seeds, paired tests, counts of sites, learning curves.

All functions are pure; accuracies and differences are shares, as everywhere in the files.

One observation is a run, that is a seed. The sites of a run are not independent, because they share
a model and a split. So a method's accuracy in a run is its mean over the sites, and methods are
compared over runs. A test generalises to other seeds, not to other data.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import sqrt
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any, TypeVar

from scipy.stats import t as student
from scipy.stats import ttest_rel

if TYPE_CHECKING:
    from pandas import DataFrame

CONFIDENCE = 0.95
"""Confidence of every interval, unless a function is given another."""

Unit = TypeVar("Unit", bound=Hashable)

Units = Mapping[tuple[int, int], float]
"""Accuracy of one method by (seed, site)."""
Runs = Mapping[int, float]
"""Mean accuracy of one method over the sites of a run, by seed."""

LAST_ROUNDS = 5
"""The mean of this many rounds stands beside the last round, which alone may be lucky."""

_ROUNDING = 1e-12
"""A standard deviation of shares below this comes from floating point, not from the seeds."""


@dataclass(frozen=True)
class Mean:
    """Mean of n >= 1 values, and sample standard deviation (n - 1): None for one value."""

    value: float
    sd: float | None
    n: int


@dataclass(frozen=True)
class Difference:
    """Mean of n >= 1 paired differences, the first method less the second.

    `low` and `high` are the ends of the t-interval, `p` is of the two-sided paired t-test. They are
    None where the differences do not vary (one pair, or a method against itself), because t divides
    by their standard deviation.
    """

    value: float
    n: int
    low: float | None = None
    high: float | None = None
    p: float | None = None

    @property
    def half_width(self) -> float | None:
        """Half the width of the interval; None without one."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


@dataclass(frozen=True)
class PairCounts:
    """In how many of n pairs the first is higher, and lower, by more than a margin."""

    higher: int
    lower: int
    n: int

    @property
    def lower_share(self) -> float | None:
        """Share of pairs in which the first is lower; None without pairs."""
        return self.lower / self.n if self.n else None


def mean_sd(values: Iterable[float]) -> Mean | None:
    """Return mean and sample standard deviation; None where there are no values."""
    listed = list(values)
    if not listed:
        return None
    return Mean(fmean(listed), stdev(listed) if len(listed) > 1 else None, len(listed))


def paired_difference(
    first: Mapping[Unit, float], second: Mapping[Unit, float], confidence: float = CONFIDENCE
) -> Difference | None:
    """Compare two methods over the units, such as seeds, that both have; None where there is none.

    With mean d and sample standard deviation s of the n differences, the interval is
    d -+ t((1 + confidence) / 2, n - 1) s / sqrt(n), and p belongs to t = d sqrt(n) / s.
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
    """Return half the width of the t-interval of n differences, in their standard deviations."""
    return float(student.ppf((1 + CONFIDENCE) / 2, n - 1)) / sqrt(n)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return Holm's step-down corrected p-values (Holm 1979), in the order given.

    The i-th smallest of m values is multiplied by m - i + 1; the results are kept monotone and at
    most 1. None stands for a test that could not be made: it stays None and does not count in m.
    """
    made = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    least = 0.0
    for rank, (p, place) in enumerate(made):
        least = max(least, min(1.0, p * (len(made) - rank)))
        corrected[place] = least
    return corrected


@dataclass(frozen=True)
class BestComparison:
    """The method with the highest mean, and the others compared with it.

    Attributes:
        best: name of that method.
        differences: each other method less the best, over the runs that all methods have. Its 95 %
            interval is None where there is one run, or where the differences do not vary.
        corrected: p-values of the differences, corrected by Holm over all pairs of methods, because
            the best method is chosen by the same numbers.
    """

    best: str
    differences: Mapping[str, Difference]
    corrected: Mapping[str, float | None]

    @property
    def worse(self) -> list[str]:
        """Methods that are significantly worse than the best."""
        return [m for m, p in self.corrected.items() if p is not None and p < 1 - CONFIDENCE]

    @property
    def undecided(self) -> list[str]:
        """Methods whose difference from the best is not significant."""
        return [method for method in self.differences if method not in self.worse]

    @property
    def runs(self) -> int:
        """Number of runs that every method has."""
        return min(difference.n for difference in self.differences.values())

    @property
    def median_half_width(self) -> float | None:
        """Median half-width of the intervals; None where there is none.

        Smaller differences cannot be told from chance.
        """
        halves = [r for d in self.differences.values() if (r := d.half_width) is not None]
        return median(halves) if halves else None


def bonferroni_confidence(comparisons: int) -> float:
    """Return the confidence of each of n >= 1 intervals so that all hold together at 95 %.

    This is Bonferroni's correction, 1 - 0.05 / n.
    """
    return 1 - (1 - CONFIDENCE) / comparisons


def mean_by_seed(found: Mapping[str, Units]) -> dict[str, dict[int, float]]:
    """Return each method's mean accuracy by seed, over the units that all methods have."""
    shared = set.intersection(*map(set, found.values())) if found else set()
    seeds = sorted({seed for seed, _ in shared})
    return {
        method: {s: fmean(units[unit] for unit in shared if unit[0] == s) for s in seeds}
        for method, units in found.items()
    }


def compare_with_best(found: Mapping[str, Units]) -> BestComparison | None:
    """Compare methods over the runs that all of them have.

    Returns None where there are fewer than two methods or no run that all have.
    """
    runs = mean_by_seed(found)
    if len(runs) < 2 or not all(runs.values()):
        return None
    best = max(runs, key=lambda method: fmean(runs[method].values()))
    pairs = list(combinations(runs, 2))
    tests = [paired_difference(runs[one], runs[other]) for one, other in pairs]
    p_of = dict(zip(map(frozenset, pairs), holm([t.p if t else None for t in tests]), strict=True))
    less = {m: paired_difference(of, runs[best]) for m, of in runs.items() if m != best}
    differences = {method: found for method, found in less.items() if found is not None}
    return BestComparison(
        best, differences, {method: p_of[frozenset({method, best})] for method in differences}
    )


def count_pairs(pairs: "DataFrame", margin: float = 0.0) -> PairCounts:
    """Count the rows in which `ours` is higher, and lower, than `theirs` by more than `margin`.

    A difference of exactly the margin does not count, however floating point rounds it.
    """
    differences, least = pairs["ours"] - pairs["theirs"], margin + _ROUNDING
    higher, lower = int((differences > least).sum()), int((differences < -least).sum())
    return PairCounts(higher, lower, len(differences))


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
    """Return the mean test accuracies of a run's rounds, from rows of metrics.jsonl.

    Round 0 (the warm-up) and rounds that measured nothing are left out.
    """
    every = (row.get("mean_test_accuracy") for row in rounds if row["round"] > 0)
    return [accuracy for accuracy in every if accuracy is not None]
