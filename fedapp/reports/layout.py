"""The parts of a report as values (tables, pictures, blocks, sections), and their pages.

A comparison's report consists of sections, which are written as HTML and as Markdown. A page of
runs or of a site consists of blocks, which are written as HTML only.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fedapp.core.formatting import percent
from fedapp.reports.statistics import Mean

DASH = "-"
"""Stands in the place of a value that was not measured."""
LIGHT = (
    "--back: #fff; --ink: #1c2733; --soft: #55626f; --line: #dbe1e7; --panel: #f5f7f9; "
    "--mark: #0b5c93; --on: #fff; --c0: #005f99; --c1: #7a4b00; --c2: #a83a00; --c3: #00684d; "
    "--g0: #a83a00; --g1: #75439b; --g2: #005f99;"
)
DARK = (
    "--back: #14181d; --ink: #e6ebf0; --soft: #a3afbb; --line: #313a44; --panel: #1b2128; "
    "--mark: #7cc0f2; --on: #0d1116; --c0: #6cb8f0; --c1: #e8b060; --c2: #ff9a66; --c3: #5fd0a8; "
    "--g0: #ff9a66; --g1: #cba6f0; --g2: #6cb8f0;"
)
"""Colours of pages and pictures, as variables of a style sheet, for a light and a dark screen."""


@dataclass(frozen=True)
class BestEntry:
    """A cell of a table that is the best of its column, so it is printed in bold."""

    text: str


Entry = str | BestEntry


def mean_percent(mean: Mean | None, planned: int) -> str:
    """Return mean and standard deviation of shares in percent, such as "78.9 ± 0.4".

    One value has no standard deviation. The number of values is added, as in "78.9 ± 0.4 (n = 2)",
    where it is not the `planned` one.
    """
    if mean is None:
        return DASH
    spread = "" if mean.sd is None else f" ± {percent(mean.sd)}"
    return percent(mean.value) + spread + ("" if mean.n == planned else f" (n = {mean.n})")


@dataclass(frozen=True)
class Table:
    """One table. The first `labels` columns are texts, the others numbers.

    Neighbouring rows with the same first cell form a group. `notes` are sentences below the table
    that explain the numbers.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Entry]]
    notes: Sequence[str] = ()
    labels: int = 2

    @property
    def alike(self) -> int:
        """How many first columns a page leaves out: that of the settings, where there is one."""
        one = len({row[0] for row in self.rows}) == 1
        return int(self.labels > 1 and self.columns[0] == "Setting" and one)

    @property
    def empty(self) -> bool:
        """Whether no number is known."""
        return all(entry == DASH for row in self.rows for entry in row[self.labels :])

    def begins_group(self, index: int) -> bool:
        """Tell whether row `index` is the first of its group, where groups have several rows."""
        groups = [row[0] for row in self.rows]
        several = self.labels > 1 and len(set(groups)) < len(groups)
        return several and index > 0 and groups[index] != groups[index - 1]


@dataclass(frozen=True)
class ImageFile:
    """A figure in a file of its own, relative to the report, and what it shows."""

    file: str
    title: str
    caption: str


@dataclass(frozen=True)
class Section:
    """A heading of a comparison's report, and everything below it."""

    title: str
    paragraphs: Sequence[str] = ()
    tables: Sequence[Table] = ()
    pictures: Sequence[ImageFile] = ()


@dataclass(frozen=True)
class Picture:
    """A finished drawing, as SVG. `width` is in pixels.

    `wide` is the same drawing for pages of at least `charts.WIDE` pixels; None: `svg` serves both.
    """

    svg: Markup
    width: float
    wide: Markup | None = None


@dataclass(frozen=True)
class Figure:
    """A picture, and its numbers as a table for readers who cannot see it or want to know more."""

    picture: Picture
    caption: str
    table: Table | None = None


@dataclass(frozen=True)
class Block:
    """One subject of a page.

    `explanation` says what is shown and how to read it, `missing` why something could not be shown.
    """

    title: str
    explanation: str
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    lines: Sequence[str] = ()
    missing: str = ""

    @property
    def full(self) -> bool:
        """Whether there is anything to show but the reason why something is missing."""
        return bool(self.figures or self.tables or self.lines)


Subject = Sequence[tuple[str, Block]]
"""(name of a run, its block) for each run of a page; all blocks have the same title."""


NO_DEVICE: Final = "Research software, no medical device: not for the care of a patient."
"""Stands on every page that people may forward."""


def blocks_page(
    title: str,
    lead: Sequence[str],
    subjects: Sequence[Subject],
    first: Sequence[Table] = (),
    care: Sequence[str] = (),
) -> str:
    """Return the HTML of a page.

    A subject with nothing to show gets no section: a line at the end of the page gives the reason.

    Args:
        title: the page's heading.
        lead: sentences at the head of the page, the most important one first.
        subjects: the sections.
        first: tables between the lead and the sections.
        care: what to know before a model is used; it stands beside the lead.
    """
    shown = [of for of in subjects if any(block.full for _, block in of)]
    left_out = [
        f"{of[0][1].title}: {why}"
        for of in subjects
        if of not in shown
        for why in dict.fromkeys(block.missing for _, block in of)
    ]
    return html_page(
        "run",
        title=title,
        lead=lead,
        care=[*care, NO_DEVICE],
        first=first,
        subjects=shown,
        left_out=left_out,
    )


def html_page(kind: str, **of: object) -> str:
    """Fill the template `run` or `comparison`. The page loads nothing from other places."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests["best"] = lambda entry: isinstance(entry, BestEntry)
    colours = {"light": Markup(LIGHT), "dark": Markup(DARK)}  # noqa: S704
    return environment.get_template(f"{kind}.html.j2").render(of, **colours)


def to_markdown(title: str, sections: Iterable[Section]) -> str:
    """Return a comparison's report as GitHub-flavoured Markdown."""
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
    """Return a text, on one line, such that Markdown shows its characters as they are."""
    one_line = " ".join(text.split())
    marked = re.sub(r"([\\`*|<>\[\]&~$#])", r"\\\1", one_line)
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", marked)


def _table(table: Table) -> str:
    aligned = ["---"] * table.labels + ["---:"] * (len(table.columns) - table.labels)
    lines = [list(map(escaped, table.columns)), aligned]
    lines += [[_entry(entry) for entry in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _entry(entry: Entry) -> str:
    return f"**{escaped(entry.text)}**" if isinstance(entry, BestEntry) else escaped(entry)
