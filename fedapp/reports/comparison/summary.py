"""A comparison on the screen: a short table, and which differences are significant, in words."""

from collections.abc import Callable, Sequence, Set
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
from fedapp.reports.statistics import BestComparison, Mean

_RULES = {VALIDATION: "at the round chosen by validation", LAST: "after the last round"}
"""How the round was chosen, in words."""


def in_words(told: BestComparison, called: Callable[[str], str] = str) -> str:
    """Return which method is best, which are worse, and which cannot be told from it.

    Differences are in percentage points of accuracy. called: the name of a method in the text.
    """
    said = [f"{called(told.best)} is highest"]
    if told.runs < 2:
        return f"{said[0]}; one seed tells nothing about other seeds."
    if told.median_half_width is None:
        return f"{said[0]}; no difference varies over the seeds, so none has a test."
    for words, methods in (
        ("below it beyond chance", told.worse),
        ("cannot be told from it", told.undecided),
    ):
        shown = ", ".join(f"{called(m)} ({points(told.differences[m].value)})" for m in methods)
        said += [f"{words}: {shown}"] * bool(methods)
    pairs = "the two" if len(told.differences) == 1 else "half of the pairs"
    return (
        f"{'; '.join(said)}. Over {told.runs} seeds {pairs} must differ by "
        f"{100 * told.median_half_width:.1f} points or more to be told from chance."
    )


def overview(comparison: ComparisonRecord, by: Metric = "accuracy") -> str:
    """Return a table of test accuracy by method and setting, in percent: mean ± sd over seeds.

    Whichever there are more of, methods or settings, stands in the rows. The number of seeds is
    added in brackets where some are missing. sd is the sample standard deviation (n - 1), so a
    single seed has none. Steps and images of each method, means over its cells, stand beside the
    accuracies, because a method that does more work is not better by its rule alone.

    by: the metric; one other than accuracy is over the test images of all sites together.
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
    found_by = set(comparison.results["selected_by"])
    rules = [words for rule, words in _RULES.items() if rule in found_by]
    what = (
        "Test accuracy"
        if by == "accuracy"
        else f"Test {METRIC_NAMES[by]}, all sites' images together,"
    )
    return aligned(f"{what} {' or '.join(rules)}, %, mean ± sd over seeds", lines)


def _work(comparison: ComparisonRecord, method: str, column: str) -> str:
    """Return the mean of a count over a method's cells; a dash where none has it."""
    by_setting = (comparison.by_seed(s, method, column) for s in comparison.settings)
    counts = [value for by_seed in by_setting for value in by_seed.values()]
    return count(fmean(counts) if counts else None)


def _spread(mean: Mean | None, seeds: int) -> str:
    if mean is None:
        return "-"
    spread = "" if mean.sd is None else f" ± {percent(mean.sd)}"
    return f"{percent(mean.value)}{spread}" + (f" ({mean.n})" if mean.n < seeds else "")


def aligned(title: str, lines: Sequence[Sequence[str]], left: Set[int] = frozenset({0})) -> str:
    """Return rows of cells as aligned columns under a title.

    left: indices of the columns that are flush left; the others are flush right.
    """
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
    rows = [
        [
            t.ljust(w) if k in left else t.rjust(w)
            for k, (t, w) in enumerate(zip(line, widths, strict=True))
        ]
        for line in lines
    ]
    return "\n".join([title, *("  ".join(row).rstrip() for row in rows)])
