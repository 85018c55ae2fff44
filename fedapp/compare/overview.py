"""The short table that a comparison ends with on the screen."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from fedapp.figures import percent


def overview(
    results: Sequence[Mapping[str, Any]],
    settings: Sequence[str],
    methods: Sequence[str],
    seeds: int,
) -> str:
    """Return selected_test_accuracy in %, mean ± sd over seeds, method by setting.

    results: rows of results.csv. seeds: how many each cell should have; fewer are said, "(2)". The
    longer of the two stands in rows. sd is the sample's, with n - 1; a single seed has none.
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
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
    title = "Test accuracy at the round chosen by validation, %, mean ± sd over seeds"
    return "\n".join([title, *("  ".join(_justified(line, widths)).rstrip() for line in lines)])


def _cell(accuracies: Sequence[float], seeds: int) -> str:
    if not accuracies:
        return "-"
    spread = f" ± {percent(stdev(accuracies))}" if len(accuracies) > 1 else ""
    few = f" ({len(accuracies)})" if len(accuracies) < seeds else ""
    return f"{percent(fmean(accuracies))}{spread}{few}"


def _justified(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        line[0].ljust(widths[0]),
        *(t.rjust(w) for t, w in zip(line[1:], widths[1:], strict=True)),
    ]
