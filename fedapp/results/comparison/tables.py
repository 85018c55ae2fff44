"""The tables of accuracy: ours by method and setting, and the paper's beside it.

Accuracy is the selected one wherever nothing else is said: at the round with the best mean accuracy
on validation images, a choice that sees no test image.
"""

from collections.abc import Sequence
from statistics import fmean

from fedapp.ground.text import points
from fedapp.results.comparison.looks import MIX, looks
from fedapp.results.comparison.paper import PaperNumbers
from fedapp.results.comparison.record import BEST, FINAL, SELECTED, Comparison
from fedapp.results.layout import DASH, Best, Entry, Table, mean_percent

_UNLIKE = "†"
"""Marks a paper's number that ours is not to be held against; a note says why."""


def accuracy_table(comparison: Comparison) -> Table:
    """Method x setting, the best of each setting in bold."""
    names, seeds = looks(comparison.methods, comparison.presets), len(comparison.seeds)
    settings = comparison.settings
    best = {setting: best_of(comparison, setting) for setting in settings}
    rows = []
    for method in comparison.methods:
        row: list[Entry] = [names[method].label]
        for setting in settings:
            text = mean_percent(comparison.mean(setting, method, SELECTED), seeds)
            row.append(Best(text) if method == best[setting] else text)
        rows.append(row)
    notes = [
        "Mean test accuracy over sites, in %, at the round with the best mean validation accuracy; "
        "mean ± sample standard deviation over seeds "
        f"(n = {seeds} unless said otherwise)."
    ]
    if any(best.values()):
        notes.append("Bold: the best mean of a setting, among the methods with most seeds.")
    notes += upper_note(comparison)
    return Table("Accuracy by method and setting, %", ["Method", *settings], rows, notes, labels=1)


def paper_table(comparison: Comparison, numbers: PaperNumbers) -> Table:
    """The three ways to choose a round side by side, and the paper's number beside ours."""
    names = looks(comparison.methods, comparison.presets)
    rows: list[list[Entry]] = []
    found, unlike = False, set[str]()
    for setting in comparison.settings:
        for method in comparison.ran(setting):
            ran = len(comparison.of(setting, method))
            best = comparison.mean(setting, method, BEST)
            shown = printed = numbers.find(setting, method)
            if other := numbers.unlike(setting, method):
                shown = f"{other[0]} {_UNLIKE}"
                unlike.add(other[1])
            found = found or shown is not None
            rows.append(
                [
                    setting,
                    names[method].label,
                    str(ran),
                    mean_percent(comparison.mean(setting, method, SELECTED), ran),
                    mean_percent(comparison.mean(setting, method, FINAL), ran),
                    mean_percent(best, ran),
                    shown or DASH,
                    points(best.value - float(printed) / 100) if best and printed else DASH,
                ]
            )
    columns = [
        *("Setting", "Method", "Seeds", "Selected on validation", "Last round"),
        *("Best test accuracy over rounds", "Paper: best test accuracy over rounds"),
        "Ours less the paper's, points",
    ]
    if not found:
        columns, rows = columns[:-2], [row[:-2] for row in rows]
    notes = [
        '"Best test accuracy over rounds" picks the round by its test accuracy, as the paper does: '
        "it flatters every method, the more the more its curve wavers, and is here to be "
        "compared with the paper only."
    ]
    if comparison.method(MIX):
        notes.append("Mix is measured once, after the last round: its three columns are one.")
    notes += [f"{_UNLIKE} Not comparable: {why}." for why in sorted(unlike)]
    if found:
        notes.append(_sizes(comparison, numbers.sizes))
    elif numbers.asked:
        notes.append("The paper's table that was asked for has none of these settings and methods.")
    beside = ", and the paper's" if found else ""
    return Table(f"Accuracy by choice of round{beside}, %", columns, rows, notes)


def best_of(comparison: Comparison, setting: str, column: str = SELECTED) -> str | None:
    """Return the method that is printed in bold; None where there are not two to choose from."""
    measured = {
        method: values
        for method in comparison.methods
        if (values := comparison.by_seed(setting, method, column))
        and not comparison.has_all_labels(setting, method)
    }
    most = max(map(len, measured.values()), default=0)
    whole = {m: fmean(values.values()) for m, values in measured.items() if len(values) == most}
    return max(whole, key=lambda m: whole[m]) if len(whole) > 1 else None


def upper_note(comparison: Comparison) -> list[str]:
    """Return a note on the methods that see every label; none where no method does."""
    names = looks(comparison.methods, comparison.presets)
    upper = [m for m in comparison.methods if _any_has_all_labels(comparison, m)]
    if not upper:
        return []
    return [
        f"With every training image labelled: {', '.join(names[m].label for m in upper)}. They "
        "are upper references: the others see a part of the labels, so these are never in bold."
    ]


def _any_has_all_labels(comparison: Comparison, method: str) -> bool:
    return any(comparison.has_all_labels(setting, method) for setting in comparison.settings)


def _sizes(comparison: Comparison, theirs: str) -> str:
    """Say how large the runs were, for the paper's numbers are of runs of another size."""
    sites = _range([c.sites for c in comparison.cells.values()])
    rounds = _range([c.rounds for c in comparison.cells.values()])
    return (
        f"Here: {sites} sites, {rounds} rounds. The paper: {theirs}. Where the sizes differ, only "
        "the order of the methods can be compared, not the numbers."
    )


def _range(values: Sequence[float | None]) -> str:
    known = sorted({value for value in values if value is not None})
    if not known:
        return "unknown"
    return f"{known[0]:g}" if len(known) == 1 else f"{known[0]:g} to {known[-1]:g}"
