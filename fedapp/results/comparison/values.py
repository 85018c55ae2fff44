"""The tables of a sweep over what the data are like: method by value, as its figure shows it."""

from fedapp.results.comparison.looks import looks_of_lines
from fedapp.results.comparison.record import SELECTED, WORST_DECILE, Comparison
from fedapp.results.comparison.sweep import Sweep
from fedapp.results.comparison.tables import best_of, upper_note
from fedapp.results.layout import DASH, Best, Entry, Table, mean_percent

TITLES = {SELECTED: "Accuracy by {}, %", WORST_DECILE: "Worst tenth of the sites by {}, %"}


def value_table(comparison: Comparison, sweep: Sweep, column: str) -> Table:
    """Every line's accuracy at every value; column: one of `TITLES`. The best is in bold."""
    shown, seeds = looks_of_lines(comparison, sweep), len(comparison.seeds)
    best = {setting: best_of(comparison, setting, column) for setting in sweep.settings}
    rows = []
    for key, line in sweep.lines.items():
        row: list[Entry] = [shown[key].label or "mean over sites"]
        for value in sweep.values:
            if value not in line:
                row.append(DASH)
                continue
            setting, method = line[value]
            text = mean_percent(comparison.mean(setting, method, column), seeds)
            row.append(Best(text) if method == best[setting] else text)
        rows.append(row)
    columns = ["Method", *(f"{sweep.parameter} = {value:g}" for value in sweep.values)]
    notes = [
        "Test accuracy in %, at the round with the best mean validation accuracy; mean ± sample "
        f"standard deviation over seeds (n = {seeds} unless said otherwise). Bold: the best mean "
        "of a setting, among the methods with most seeds.",
        *upper_note(comparison),
    ]
    return Table(TITLES[column].format(sweep.parameter), columns, rows, notes, labels=1)
