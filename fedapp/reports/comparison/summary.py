"""A comparison on the screen: its short table, and what it can tell and what it cannot see."""

from collections.abc import Sequence, Set
from statistics import fmean

from fedapp.core.formatting import count, percent, points
from fedapp.evaluation.classification_metrics import METRIC_NAMES, Metric
from fedapp.reports.comparison.record import (
    BY_METRIC,
    LAST,
    SELECTED,
    VALIDATION,
    WORK,
    ComparisonRecord,
)
from fedapp.reports.statistics import Mean, Telling

_RULES = {VALIDATION: "at the round chosen by validation", LAST: "after the last round"}
"""How a round was selected, in words."""


def in_words(told: Telling) -> str:
    """Return a sentence for each kind of method; points are of accuracy."""
    if told.runs < 2:
        return f"{told.best} is highest; one seed tells nothing about other seeds."
    if told.reach is None:
        return f"{told.best} is highest; no difference varies over the seeds, so none has a test."
    said = [
        f"over {told.runs} seeds half of the pairs must differ by {100 * told.reach:.1f} points or "
        "more to be told from chance"
    ]
    if told.behind:
        shown = ", ".join(f"{m} ({points(told.differences[m].value)})" for m in told.behind)
        said.append(f"below {told.best} beyond chance: {shown}")
    if told.open:
        shown = ", ".join(f"{m} ({points(told.differences[m].value)})" for m in told.open)
        said.append(f"not told from {told.best}, the highest: {shown}")
    return "; ".join(said) + "."


def overview(comparison: ComparisonRecord, by: Metric = "accuracy") -> str:
    """Return selected test accuracy in %, mean ± sd over seeds, method by setting.

    by: another metric in its place, of all sites' test images together.

    Where seeds are missing, how many there are is said: "(2)". The longer of the two stands in
    rows. sd is the sample's, with n - 1; a single seed has none. Beside it stands how much work
    each method is, mean over its cells: who takes more steps is no better by its rule alone.
    """
    settings, methods = comparison.settings, comparison.methods
    down = len(settings) > len(methods)
    shown = SELECTED if by == "accuracy" else BY_METRIC[by]
    rows, columns = (settings, methods) if down else (methods, settings)
    lines = [["", *columns]]
    for row in rows:
        means = [
            comparison.mean(*((row, column) if down else (column, row)), shown)
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
    what = (
        "Test accuracy"
        if by == "accuracy"
        else f"Test {METRIC_NAMES[by]}, all sites' images together,"
    )
    return aligned(f"{what} {' or '.join(rules)}, %, mean ± sd over seeds", lines)


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
