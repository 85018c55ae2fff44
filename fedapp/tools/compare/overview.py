"""The short tables that a comparison and a tuning end with on the screen."""

from collections.abc import Mapping, Sequence, Set
from statistics import fmean, stdev
from typing import Any

from fedapp.ground.text import count, percent
from fedapp.results.comparison.record import LAST, VALIDATION
from fedapp.tools.compare.tuning import Judged

_RULES = {VALIDATION: "at the round chosen by validation", LAST: "after the last round"}
"""How a round was selected, in words."""
_WORK = {"steps_per_site": "steps a site", "images_per_site": "images a site"}
"""Column of results.csv -> what stands above it."""


def overview(
    results: Sequence[Mapping[str, Any]],
    settings: Sequence[str],
    methods: Sequence[str],
    seeds: int,
) -> str:
    """Return selected_test_accuracy in %, mean ± sd over seeds, method by setting.

    results: rows of results.csv. seeds: how many each cell should have; fewer are said, "(2)". The
    longer of the two stands in rows. sd is the sample's, with n - 1; a single seed has none. Beside
    it stands how much work each method is, mean over its cells: who takes more steps is no better
    by its rule alone.
    """
    found: dict[tuple[str, str], list[float]] = {}
    for result in results:
        if (accuracy := result["selected_test_accuracy"]) is not None:
            found.setdefault((result["setting"], result["method"]), []).append(accuracy)
    down = len(settings) > len(methods)
    rows, columns = (settings, methods) if down else (methods, settings)
    lines = [["", *columns]]
    for row in rows:
        keys = [(row, column) if down else (column, row) for column in columns]
        lines.append([row, *(_cell(found.get(key, []), seeds) for key in keys)])
    for column, words in _WORK.items():
        work = [_mean_of(results, method, column) for method in methods]
        if any(cell != "-" for cell in work):
            if down:
                lines.append([words, *work])
            else:
                for line, cell in zip(lines, [words, *work], strict=True):
                    line.append(cell)
    found_by = {result["selected_by"] for result in results}
    rules = [words for rule, words in _RULES.items() if rule in found_by]
    title = f"Test accuracy {' or '.join(rules)}, %, mean ± sd over seeds"
    return _aligned(title, lines)


def tuning_overview(judged: Sequence[Judged]) -> str:
    """Return every candidate's validation accuracy in %, the chosen ones marked with a star."""
    lines = [["", "", "validation", ""]]
    for j in judged:
        where = f"{j.setting} / {j.candidate.method}" if j.setting else j.candidate.method
        words = [where, "*" if j.chosen else "", percent(j.validation)]
        lines.append([*words, j.candidate.words])
    return _aligned("Accuracy on validation images, %; * is chosen", lines, left={0, 3})


def _mean_of(results: Sequence[Mapping[str, Any]], method: str, column: str) -> str:
    """Return a count, mean over a method's cells that have it; a dash without any."""
    counts = [
        value
        for result in results
        if result["method"] == method and (value := result.get(column)) is not None
    ]
    return count(fmean(counts) if counts else None)


def _cell(accuracies: Sequence[float], seeds: int) -> str:
    if not accuracies:
        return "-"
    spread = f" ± {percent(stdev(accuracies))}" if len(accuracies) > 1 else ""
    few = f" ({len(accuracies)})" if len(accuracies) < seeds else ""
    return f"{percent(fmean(accuracies))}{spread}{few}"


def _aligned(title: str, lines: Sequence[Sequence[str]], left: Set[int] = frozenset({0})) -> str:
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
