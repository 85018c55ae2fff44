"""What a page is made of."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedapp.results.layout import Table
from fedapp.results.run.svg import Picture


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
