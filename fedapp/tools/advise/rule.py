"""Which method to take, by what a few short runs of each have shown: a pure function of numbers.

The simplest candidate stands until another is shown to be better, beyond chance. What may be better
by more than a point, but was not shown to be, is a rival: then the images cannot tell.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

from fedapp.reports.statistics import Difference, level, paired_difference

MARGIN = 0.01
"""A point of accuracy: what is better by less is not worth a more complicated method."""

Unit = TypeVar("Unit", bound=Hashable)


@dataclass(frozen=True)
class Advice:
    """The method that stands at the end.

    differences: every other candidate less it; positive: that one did better. over: the candidates
    that it was shown to be better than on the way. rivals: those that may be better by more than
    `MARGIN`. highest: the candidate with the highest mean. reach: half the width of the rivals'
    widest interval, differences below which are not seen; None: no rival has an interval.
    """

    method: str
    differences: Mapping[str, Difference]
    over: tuple[str, ...]
    rivals: tuple[str, ...]
    highest: str
    reach: float | None

    @property
    def clear(self) -> bool:
        """Whether nothing else can be better by more than `MARGIN`."""
        return not self.rivals


def advise(found: Mapping[str, Mapping[Unit, float]]) -> Advice | None:
    """Return which candidate to take; None below two candidates, or without a unit of all.

    found: candidates, the simplest first -> accuracy, in [0, 1], by unit. A unit is a run: a seed.
    The sites of a run share a model and a split, so they are not independent.
    Intervals hold together at 95 % (Bonferroni, over every pair that can be asked about); a
    difference without an interval (a single unit) shows nothing.
    """
    shared = set.intersection(*map(set, found.values())) if found else set()
    if len(found) < 2 or not shared:
        return None
    units = {name: {unit: values[unit] for unit in shared} for name, values in found.items()}
    pairs = len(units) * (len(units) - 1) // 2

    def less(name: str, other: str) -> Difference:
        difference = paired_difference(units[name], units[other], level(pairs))
        assert difference is not None  # they share a unit
        return difference

    first, *others = units
    method, over = first, list[str]()
    for name in others:
        low = less(name, method).low
        if low is not None and low > 0:
            over.append(method)
            method = name
    differences = {name: less(name, method) for name in units if name != method}
    rivals = tuple(name for name, d in differences.items() if _may_be_better(d))
    reaches = [r for name in rivals if (r := differences[name].reach) is not None]
    highest = max(units, key=lambda name: fmean(units[name].values()))
    return Advice(method, differences, tuple(over), rivals, highest, max(reaches, default=None))


def _may_be_better(difference: Difference) -> bool:
    if difference.high is None:  # the same in all units, or a single one
        return difference.n < 2 or difference.value > MARGIN
    return difference.high > MARGIN
