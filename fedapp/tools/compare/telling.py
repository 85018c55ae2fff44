"""What a comparison can tell: which methods differ beyond chance, and what it cannot see.

Pure functions of numbers; accuracies and differences are shares.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from fedapp.ground.text import points
from fedapp.tools.report.statistics import CONFIDENCE, Difference, paired_difference

Units = Mapping[tuple[int, int], float]
"""(seed, site) -> accuracy of one method there."""


@dataclass(frozen=True)
class Telling:
    """The method with the highest mean, and the others beside it.

    differences: each other method less the best, over the same units, at a level that holds for all
    of them together. Their intervals are None where there is one unit, or all differ alike.
    """

    best: str
    differences: Mapping[str, Difference]

    @property
    def behind(self) -> list[str]:
        """Methods that are shown to be worse than the best."""
        return [m for m, d in self.differences.items() if d.high is not None and d.high < 0]

    @property
    def open(self) -> list[str]:
        """Methods that cannot be told from the best."""
        return [method for method in self.differences if method not in self.behind]

    @property
    def reach(self) -> float | None:
        """Median half-width of the intervals: smaller differences are not seen; None: not known."""
        halves = [r for d in self.differences.values() if (r := reach_of(d)) is not None]
        return median(halves) if halves else None


def reach_of(difference: Difference) -> float | None:
    """Return half the width of an interval; None without one."""
    if difference.low is None or difference.high is None:
        return None
    return (difference.high - difference.low) / 2


def level(comparisons: int) -> float:
    """Return the confidence of each of so many intervals (>= 1) that hold together at 95 %.

    Bonferroni's 1 - 0.05 / n.
    """
    return 1 - (1 - CONFIDENCE) / comparisons


def telling(found: Mapping[str, Units]) -> Telling | None:
    """Compare methods over the units that all of them have; None below two methods or one unit."""
    shared = set.intersection(*map(set, found.values())) if found else set()
    if len(found) < 2 or not shared:
        return None
    means = {method: fmean(units[unit] for unit in shared) for method, units in found.items()}
    best = max(means, key=lambda method: means[method])
    theirs = {unit: found[best][unit] for unit in shared}
    each = level(len(found) - 1)
    differences = {
        method: difference
        for method, units in found.items()
        if method != best and (difference := paired_difference(units, theirs, each)) is not None
    }
    return Telling(best, differences)


def units_of(sites: Iterable[Mapping[str, Any]], setting: str) -> dict[str, Units]:
    """Return each method's units of a setting: accuracy at the round chosen by validation.

    sites: rows of sites.csv; a site without test inputs has no accuracy, and is left out.
    """
    found: dict[str, dict[tuple[int, int], float]] = {}
    for row in sites:
        if row["setting"] == setting and (accuracy := row["selected_accuracy"]) is not None:
            found.setdefault(row["method"], {})[row["seed"], row["site"]] = accuracy
    return dict(found)


def in_words(told: Telling) -> str:
    """Return a sentence for each kind of method; points are of accuracy."""
    if told.reach is None:
        return f"{told.best} is highest; one site, or one seed of few, cannot tell it from chance."
    said = [f"differences under about {100 * told.reach:.1f} points cannot be told from chance"]
    if told.behind:
        shown = ", ".join(f"{m} ({points(told.differences[m].value)})" for m in told.behind)
        said.append(f"below {told.best} beyond chance: {shown}")
    if told.open:
        shown = ", ".join(f"{m} ({points(told.differences[m].value)})" for m in told.open)
        said.append(f"not told from {told.best}, the highest: {shown}")
    return "; ".join(said) + "."
