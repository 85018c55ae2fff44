"""What reports are made of, as values: tables, pictures, blocks and sections; and their pages.

A comparison's report has sections, which are Markdown too. A page of runs or of a site has blocks.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fedapp.core.formatting import percent
from fedapp.reports.statistics import Mean

DASH = "-"
"""What was not measured."""


@dataclass(frozen=True)
class Best:
    """A table's cell that is the best of its column."""

    text: str


Entry = str | Best


def mean_percent(mean: Mean | None, planned: int) -> str:
    """Return mean and sd of shares in percent: "78.9 ± 0.4".

    Without a spread the mean alone; n is said where it is not the `planned` number of seeds.
    """
    if mean is None:
        return DASH
    spread = "" if mean.sd is None else f" ± {percent(mean.sd)}"
    return percent(mean.value) + spread + ("" if mean.n == planned else f" (n = {mean.n})")


@dataclass(frozen=True)
class Table:
    """One table. The first `labels` columns are texts, the others numbers.

    A row whose first cell is the one above's belongs to the same group. notes: what the numbers
    mean, a sentence each.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Entry]]
    notes: Sequence[str] = ()
    labels: int = 2

    def begins_group(self, index: int) -> bool:
        """Tell whether row `index` is the first of its group, where groups have several rows."""
        groups = [row[0] for row in self.rows]
        several = self.labels > 1 and len(set(groups)) < len(groups)
        return several and index > 0 and groups[index] != groups[index - 1]


@dataclass(frozen=True)
class ImageFile:
    """A figure: its file, relative to the report, and what it shows."""

    file: str
    title: str
    caption: str


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    title: str
    paragraphs: Sequence[str] = ()
    tables: Sequence[Table] = ()
    pictures: Sequence[ImageFile] = ()


@dataclass(frozen=True)
class Picture:
    """A drawing that is done. width: in pixels.

    wide: the same for a page of `charts.WIDE` pixels and more; None: it serves for both.
    """

    svg: Markup
    width: float
    wide: Markup | None = None


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


Subject = Sequence[tuple[str, Block]]
"""One block for each run, with the run's name; all of one title."""


def blocks_page(
    title: str, lead: Sequence[str], subjects: Sequence[Subject], first: Sequence[Table] = ()
) -> str:
    """Return a page. lead: what stands at its head, the most important first. first: tables below.

    A subject of which there is nothing to show has no section: a line at the end says why.
    """
    shown = [of for of in subjects if any(block.full for _, block in of)]
    left_out = [
        f"{of[0][1].title}: {why}"
        for of in subjects
        if of not in shown
        for why in dict.fromkeys(block.missing for _, block in of)
    ]
    return html_page("run", title=title, lead=lead, first=first, subjects=shown, left_out=left_out)


def html_page(kind: str, **of: object) -> str:
    """Return a page that loads nothing from elsewhere. kind: of `run` or of `comparison`."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests["best"] = lambda entry: isinstance(entry, Best)
    return environment.get_template(f"{kind}.html.j2").render(of)


def to_markdown(title: str, sections: Iterable[Section]) -> str:
    """Return a report as GitHub-flavoured Markdown."""
    blocks = [f"# {escaped(title)}"]
    for section in sections:
        blocks += [f"## {escaped(section.title)}", *map(escaped, section.paragraphs)]
        for table in section.tables:
            blocks += [f"### {escaped(table.title)}", _table(table), *map(escaped, table.notes)]
        for picture in section.pictures:
            blocks += [
                f"### {escaped(picture.title)}",
                f"![{escaped(picture.title)}]({picture.file})",
                escaped(picture.caption),
            ]
    return "\n\n".join(blocks) + "\n"


def escaped(text: str) -> str:
    """Return a text that Markdown shows as it is, on one line, in a table too."""
    one_line = " ".join(text.split())
    marked = re.sub(r"([\\`*|<>\[\]&~$#])", r"\\\1", one_line)
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", marked)


def _table(table: Table) -> str:
    aligned = ["---"] * table.labels + ["---:"] * (len(table.columns) - table.labels)
    lines = [list(map(escaped, table.columns)), aligned]
    lines += [[_entry(entry) for entry in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _entry(entry: Entry) -> str:
    return f"**{escaped(entry.text)}**" if isinstance(entry, Best) else escaped(entry)
