"""Columns that the tables of a comparison share: each says something of a setting and a method."""

from collections.abc import Callable, Mapping, Sequence

from fedapp.results.comparison.record import ComparisonRecord
from fedapp.results.layout import Entry, Table, mean_percent

Column = Callable[[str, str], Entry]
"""What a column says of a setting and a method."""


def by_method(
    title: str,
    comparison: ComparisonRecord,
    columns: Mapping[str, Column],
    notes: Sequence[str],
    without: str = "",
) -> Table:
    """Return a table with a row for each method that ran in each setting, but for one method."""
    rows = [
        [s, comparison.looks[m].label, *(entry(s, m) for entry in columns.values())]
        for s, m in comparison.places
        if m != without
    ]
    return Table(title, ["Setting", "Method", *columns], rows, notes)


def spread(comparison: ComparisonRecord, column: str, *, ran: bool = False) -> Column:
    """Mean ± sd of a number of results.csv; n is said where it is not the plan's, or what ran."""

    def entry(setting: str, method: str) -> str:
        planned = comparison.of(setting, method) if ran else comparison.seeds
        return mean_percent(comparison.mean(setting, method, column), len(planned))

    return entry


def mean(comparison: ComparisonRecord, column: str, words: Callable[[float | None], str]) -> Column:
    """Mean of a number of results.csv, in these words."""
    return lambda setting, method: words(comparison.value(setting, method, column))


def seeds(comparison: ComparisonRecord) -> Column:
    """How many runs there are."""
    return lambda setting, method: str(len(comparison.of(setting, method)))
