"""What a page is made of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedapp.results.layout import Table
from fedapp.results.run.drawing import Line, Picture, line_chart, percents, rounds_axis
from fedapp.results.run.record import RunRecord


@dataclass(frozen=True)
class Figure:
    """A picture and its numbers. table: what it shows, for those who cannot see it or want more."""

    picture: Picture
    caption: str
    table: Table | None = None


@dataclass(frozen=True)
class Block:
    """One subject. reading: what it shows and how to read it. missing: why it is left out."""

    title: str
    reading: str
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    lines: Sequence[str] = ()
    missing: str = ""

    @property
    def full(self) -> bool:
        """Whether there is anything to show."""
        return bool(self.figures or self.tables or self.lines)


def over_rounds(
    run: RunRecord, title: str, lines: Sequence[Line], said: str, bands: Sequence[Line] = ()
) -> Picture:
    """Return lines of shares by round."""
    return line_chart(title, lines, rounds_axis(run.last), percents(), said, bands)


def band(spread: dict[int, tuple[float, float, float]], kind: str) -> list[Line]:
    """Return the area between the lowest and the highest of each round's three values."""
    upper = [(number, high) for number, (_, _, high) in spread.items()]
    lower = [(number, low) for number, (low, _, _) in reversed(spread.items())]
    return [Line("", [*upper, *lower], kind)] if upper else []


def rounds_table(
    run: RunRecord, title: str, columns: Mapping[str, str], words: Callable[[float | None], str]
) -> Table:
    """Return numbers of metrics.jsonl by round. columns: their titles -> their names."""
    rows = [
        [str(row["round"]), *(words(row.get(name)) for name in columns.values())]
        for row in run.rounds
    ]
    return Table(title, ["Round", *columns], rows, labels=1)
