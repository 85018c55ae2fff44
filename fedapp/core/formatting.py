"""Numbers and names as text for people, an unknown number (None) as a dash; rows as CSV text."""

import csv
import io
from collections.abc import Iterable, Sequence


def percent(share: float | None) -> str:
    """Return a share in [0, 1] in percent with one decimal, without "%": 0.8125 -> "81.2"."""
    return "-" if share is None else f"{100 * share:.1f}"


def points(difference: float) -> str:
    """Return a difference of shares in percentage points, with its sign: -0.031 -> "-3.1"."""
    return f"{100 * difference:+.1f}"


def count(number: float | None) -> str:
    """Return a number without decimals, with commas between thousands: 20000 -> "20,000"."""
    return "-" if number is None else f"{number:,.0f}"


def counted(number: float, plural: str) -> str:
    """Return a number and what it counts, of 1 in the singular: (1, "sites") -> "1 site"."""
    singular = plural.removesuffix("es" if plural.endswith("sses") else "s")
    return f"{count(number)} {singular if number == 1 else plural}"


def size(number: float | None) -> str:
    """Return a number of bytes in decimal units: 12_345_678 -> "12.3 MB"."""
    if number is None:
        return "-"
    units = ["kB", "MB", "GB", "TB"]
    if number < 1000:
        return f"{number:.0f} B"
    number /= 1000
    while number >= 999.95 and len(units) > 1:
        number /= 1000
        units.pop(0)
    return f"{number:.1f} {units[0]}"


def first_names(names: Sequence[str], most: int = 8) -> str:
    """Return the first names of a list, and how many more there are: "a, b and 3 more"."""
    more = f" and {count(len(names) - most)} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as lines of CSV; None is an empty field."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def duration(seconds: float | None) -> str:
    """Return a duration in its two largest units: 102 -> "1 min 42 s"."""
    if seconds is None:
        return "-"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"
