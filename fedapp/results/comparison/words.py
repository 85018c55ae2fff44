"""A comparison on the screen: its short table, and what it can tell and what it cannot see.

What counts as one observation is a run, that is a seed. The sites of a run are not independent:
they share a model and a split. So a method's accuracy in a run is its mean over the sites, and
methods are compared over runs. What holds is said of other seeds, not of other data.

Accuracies and differences are shares.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, median

from fedapp.ground.text import count, percent, points
from fedapp.results.comparison.record import LAST, SELECTED, VALIDATION, WORK, ComparisonRecord
from fedapp.results.statistics import CONFIDENCE, Difference, Mean, holm, paired_difference

_RULES = {VALIDATION: "at the round chosen by validation", LAST: "after the last round"}
"""How a round was selected, in words."""

Units = Mapping[tuple[int, int], float]
"""(seed, site) -> accuracy of one method there."""
Runs = Mapping[int, float]
"""Seed -> mean accuracy of one method over the sites of that run."""


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
    p_of = dict(zip(pairs, holm([test.p if test else None for test in tests]), strict=True))
    differences, corrected = {}, {}
    for method, of_method in runs.items():
        difference = paired_difference(of_method, runs[best])
        if method != best and difference is not None:
            differences[method] = difference
            corrected[method] = next(p for pair, p in p_of.items() if {*pair} == {method, best})
    return Telling(best, differences, corrected)


def in_words(told: Telling) -> str:
    """Return a sentence for each kind of method; points are of accuracy."""
    if told.runs < 2:
        return f"{told.best} is highest; one seed tells nothing about other seeds."
    if told.reach is None:
        return f"{told.best} is highest; no difference varies over the seeds, so none has a test."
    reach = f"{100 * told.reach:.1f} points cannot be told from chance over {told.runs} seeds"
    said = [f"differences under about {reach}"]
    if told.behind:
        shown = ", ".join(f"{m} ({points(told.differences[m].value)})" for m in told.behind)
        said.append(f"below {told.best} beyond chance: {shown}")
    if told.open:
        shown = ", ".join(f"{m} ({points(told.differences[m].value)})" for m in told.open)
        said.append(f"not told from {told.best}, the highest: {shown}")
    return "; ".join(said) + "."


def overview(comparison: ComparisonRecord) -> str:
    """Return selected test accuracy in %, mean ± sd over seeds, method by setting.

    Where seeds are missing, how many there are is said: "(2)". The longer of the two stands in
    rows. sd is the sample's, with n - 1; a single seed has none. Beside it stands how much work
    each method is, mean over its cells: who takes more steps is no better by its rule alone.
    """
    settings, methods = comparison.settings, comparison.methods
    down = len(settings) > len(methods)
    rows, columns = (settings, methods) if down else (methods, settings)
    lines = [["", *columns]]
    for row in rows:
        means = [
            comparison.mean(*((row, column) if down else (column, row)), SELECTED)
            for column in columns
        ]
        lines.append([row, *(_spread(mean, len(comparison.seeds)) for mean in means)])
    for column, words in zip(WORK, ("steps a site", "images a site"), strict=True):
        work = [_work(comparison, method, column) for method in methods]
        if any(cell != "-" for cell in work):
            if down:
                lines.append([words, *work])
            else:
                for line, cell in zip(lines, [words, *work], strict=True):
                    line.append(cell)
    found_by = {cell.selected_by for cell in comparison.cells.values()}
    rules = [words for rule, words in _RULES.items() if rule in found_by]
    return aligned(f"Test accuracy {' or '.join(rules)}, %, mean ± sd over seeds", lines)


def _work(comparison: ComparisonRecord, method: str, column: str) -> str:
    """Return a count, mean over a method's cells that have it; a dash without any."""
    by_setting = (comparison.by_seed(s, method, column) for s in comparison.settings)
    counts = [value for by_seed in by_setting for value in by_seed.values()]
    return count(fmean(counts) if counts else None)


def _spread(mean: Mean | None, seeds: int) -> str:
    if mean is None:
        return "-"
    spread = "" if mean.sd is None else f" ± {percent(mean.sd)}"
    return f"{percent(mean.value)}{spread}" + (f" ({mean.n})" if mean.n < seeds else "")


def aligned(title: str, lines: Sequence[Sequence[str]], left: Set[int] = frozenset({0})) -> str:
    """Return lines of cells in columns, those in `left` flush left, under a title."""
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
    rows = [
        [
            t.ljust(w) if k in left else t.rjust(w)
            for k, (t, w) in enumerate(zip(line, widths, strict=True))
        ]
        for line in lines
    ]
    return "\n".join([title, *("  ".join(row).rstrip() for row in rows)])
