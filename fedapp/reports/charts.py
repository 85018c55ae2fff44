"""Charts of a page: lines, bars, matrices, shares with intervals, small curves, images.

Matplotlib draws them as SVG. One point of Matplotlib is one pixel of a drawing that is `WIDTH`
pixels wide, the width of a telephone; the page puts several drawings beside each other where there
is room. Colours are named after variables of the page's style sheet, which defines them for a light
screen, a dark screen and paper. Matplotlib knows no such variables, so it draws with a placeholder
colour for each, which `_picture` replaces in the SVG.
"""

import io
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import matplotlib.style
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.text import Annotation
from matplotlib.transforms import Affine2D
from numpy.typing import NDArray

from fedapp.reports.layout import DARK, LIGHT, Picture

WIDTH, WIDE = 360, 860
Point = tuple[float, float]

GROUP_MARKS = ("o", "s", "D")
"""Marker of each group of sites by share of labels, because not everybody can tell colours
apart."""
_VARIABLES = (
    *("ink", "soft", "line", "back", "panel", "on"),
    *("c0", "c1", "c2", "c3", "g0", "g1", "g2"),
)
STRIPED = "striped"
"""A fill pattern, which can be told from a colour without seeing colours."""
_COLOURS = {name: f"#0000{place:02x}" for place, name in enumerate((*_VARIABLES, STRIPED), 1)}
"""Placeholder colour of each variable. Black is not used: Matplotlib leaves it out of the SVG."""
_CSS = {c: f"var(--{name})" for name, c in _COLOURS.items()} | {_COLOURS[STRIPED]: "url(#stripes)"}
_STYLE = {
    "svg.fonttype": "none",  # letters stay text: to be read aloud, searched, and in the page's font
    "text.parse_math": False,  # a name with $ in it is no formula
    "font.size": 11,
    "text.color": _COLOURS["ink"],
    "xtick.labelcolor": _COLOURS["soft"],
    "ytick.labelcolor": _COLOURS["soft"],
    "axes.labelcolor": _COLOURS["soft"],
    "grid.color": _COLOURS["line"],
    "grid.linewidth": 1,
    "axes.axisbelow": True,
}
_styled = matplotlib.style.context(_STYLE, after_reset=True)
"""Decorator: the function draws in this style, whatever the caller's style is."""
_TIP = "tip:"
"""Prefix of the identifier of a shape with a tooltip; the rest of the identifier is its text."""
_TIPPED = re.compile(rf'<g id="{_TIP}([^"]*)">\s*<path ([^>]*)/>\s*</g>')
_REMOVED = (
    r"</?g[^>]*>",  # groups: a page of several drawings would have their identifiers twice
    r' id="[^"]*"',
    r" font-family: [^;]*;",
    r' transform="rotate\(-0 [^"]*"',
    r"(?<=>)\s+(?=<)",
    r"(?<=base64,)\s+",
)
"""Parts of the SVG that are removed, because a page does not need them."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 92, 28, 34
_SPACE = 13
"""Least distance of two labels, in pixels."""
_MARGIN = 12
"""Of a drawing in a file of its own, in pixels."""


def shortened(text: str, most: int) -> str:
    """Return a text of at most `most` characters, cut with an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _drawing(title: str, height: float, width: float = WIDTH) -> Figure:
    """Return an empty drawing with a title. height, width: in pixels."""
    figure = Figure((width / 72, height / 72), dpi=72, frameon=False)
    figure.text(0, 1 - 12 / height, title, size=13, weight="bold")
    return figure


def _plot(
    figure: Figure, left: float, top: float, width: float, height: float, x: Point, y: Point
) -> Axes:
    """Add a plot to a drawing, at a place in pixels. x, y: the ranges of its axes."""
    wide, high = figure.get_size_inches() * 72
    place = (left / wide, 1 - (top + height) / high, width / wide, height / high)
    axes = figure.add_axes(place, frameon=False, xlim=x, ylim=y, xticks=[], yticks=[])
    axes.tick_params(length=0, pad=5)
    return axes


def _label(
    axes: Axes,
    words: str,
    place: Point,
    beside: Point,
    kind: str = "soft",
    ha: str = "left",
    va: str = "baseline",
    of: str = "axes fraction",
) -> Annotation:
    """Write words near a place of a plot.

    place: in the coordinates that `of` names. beside: pixels to the right of it and above it.
    """
    return axes.annotate(
        *(words, place, beside, of, "offset points"), ha=ha, va=va, color=_COLOURS[kind]
    )


def _picture(figure: Figure, alternative: str) -> Picture:
    """Return a drawing as SVG. alternative: what it shows, in words, for screen readers."""
    for artist in figure.findobj():
        artist.set_clip_on(False)
    out = io.StringIO()
    with warnings.catch_warnings():
        # The browser has fonts for letters that Matplotlib's own font lacks.
        warnings.filterwarnings("ignore", r"Glyph .* missing from font")
        figure.savefig(out, format="svg")
    drawn = out.getvalue()
    shapes = drawn[drawn.index("<g id=") : drawn.rindex("</svg>")]
    shapes = _TIPPED.sub(r"<path \2><title>\1</title></path>", shapes)
    for pattern in _REMOVED:
        shapes = re.sub(pattern, "", shapes)
    for colour, instead in _CSS.items():
        shapes = shapes.replace(colour, instead)
    width, height = (figure.get_size_inches() * 72).round(1).tolist()
    head = Markup('<svg role="img" aria-label="{}" viewBox="0 0 {:g} {:g}">')
    begun = head.format(alternative, width, height)
    # Matplotlib has escaped the names that stand in it.
    return Picture(begun + Markup(shapes) + Markup("</svg>"), width)  # noqa: S704


@dataclass(frozen=True)
class Line:
    """A line of a chart, or the outline of an area.

    `colour` is a variable of the style sheet. `points` is empty if nothing was measured. `words`
    stand beside the name if the line has a small chart of its own.
    """

    name: str
    points: Sequence[Point]
    colour: str
    dashed: bool = False
    words: str = ""


@dataclass(frozen=True)
class Axis:
    """An axis from 0 to `high` with a title. `ticks` are values, and the words for each."""

    high: float
    title: str
    ticks: Mapping[float, str]


def percents(title: str = "") -> Axis:
    """Return an axis for shares in [0, 1], labelled in percent."""
    return Axis(1, title, {v / 4: f"{25 * v} %" for v in range(5)})


def rounds_axis(last: int) -> Axis:
    """Return an axis for rounds 0 to `last`, with at most some eight ticks."""
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if last / s <= 8 or s == 1000)
    return Axis(max(last, 1), "round", {n: str(n) for n in range(0, last + 1, step)})


def axis_up_to(most: float, words: Callable[[float], str]) -> Axis:
    """Return an axis from 0 to `most` with three ticks. words: writes a value as text."""
    return Axis(most or 1, "", {value: words(value) for value in (0, most / 2, most)})


@_styled
def line_chart(
    title: str,
    lines: Sequence[Line],
    across: Axis,
    up: Axis,
    alternative: str,
    bands: Sequence[Line] = (),
    diagonal: bool = False,
) -> Picture:
    """Draw lines, each with its name at its end. bands: areas behind them, as closed outlines."""
    left = max(_LEFT, 6 * max(map(len, up.ticks.values())) + 8)
    width, height = WIDTH - left - _RIGHT, 220 - _TOP - _BOTTOM
    figure = _drawing(title, 220)
    axes = _plot(figure, left, _TOP, width, height, (0, across.high), (0, up.high))
    axes.set_xticks(list(across.ticks), list(across.ticks.values()))
    axes.set_yticks(list(up.ticks), list(up.ticks.values()))
    axes.set_xlabel(across.title, labelpad=2)
    axes.grid(axis="y")
    if diagonal:
        axes.plot((0, across.high), (0, up.high), "--", color=_COLOURS["soft"])
    for band in bands:
        axes.fill(*zip(*band.points, strict=True), color=_COLOURS[band.colour], alpha=0.16, lw=0)
    drawn = sorted((line for line in lines if line.points), key=lambda line: -line.points[-1][1])
    lowest = -float(_SPACE)
    for line in drawn:
        way = "--" if line.dashed else "-"
        colour = _COLOURS[line.colour]
        axes.plot(*zip(*line.points, strict=True), way, color=colour, lw=2)
        if len(line.points) == 1:  # through which no line can be seen
            _mark(axes, "o", line.points[0], facecolor=colour, edgecolor=colour)
        # In pixels below the plot's top, so that no name covers another.
        lowest = max(height * (1 - line.points[-1][1] / up.high), lowest + _SPACE)
        _label(axes, shortened(line.name, 14), (1, 1), (6, -lowest), line.colour, va="center")
    return _picture(figure, alternative)


def over_rounds(
    last: int, title: str, lines: Sequence[Line], said: str, bands: Sequence[Line] = ()
) -> Picture:
    """Draw lines of shares by round, 0 to `last`."""
    return line_chart(title, lines, rounds_axis(last), percents(), said, bands)


def band(ends: Iterable[tuple[float, float, float]], kind: str) -> list[Line]:
    """Return the area between two lines. ends: (x, lower y, upper y) from left to right."""
    listed = list(ends)
    upper = [(x, high) for x, _, high in listed]
    lower = [(x, low) for x, low, _ in reversed(listed)]
    return [Line("", [*upper, *lower], kind)] if listed else []


@dataclass(frozen=True)
class Bar:
    """One bar of pieces, each (length, colour), with words at its end."""

    name: str
    pieces: Sequence[tuple[float, str]]
    words: str


@_styled
def bars(title: str, given: Sequence[Bar], alternative: str) -> Picture:
    """Draw horizontal bars below each other; the longest takes the whole width."""
    row, left, right = 20, 110, 116
    most = max((sum(size for size, _ in bar.pieces) for bar in given), default=0) or 1
    figure = _drawing(title, 24 + row * len(given))
    axes = _rows(figure, left, 22, right, row, [shortened(bar.name, 17) for bar in given])
    axes.set_xlim(0, most)
    for place, bar in enumerate(given):
        end = 0.0
        for size, kind in bar.pieces:
            axes.barh(place, size, 0.7, end, color=_COLOURS[kind])
            end += size
        _label(axes, bar.words, (end, place), (6, 0), va="center", of="data")
    return _picture(figure, alternative)


def _rows(
    figure: Figure, left: float, top: float, right: float, row: float, names: Sequence[str]
) -> Axes:
    """Add a plot with a row for each name, the first at the top. row: its height in pixels."""
    width = figure.get_figwidth() * 72 - left - right
    axes = _plot(figure, left, top, width, row * len(names), (0, 1), (len(names) - 0.5, -0.5))
    axes.set_yticks(range(len(names)), list(names), color=_COLOURS["ink"])
    return axes


@dataclass(frozen=True)
class ShareInterval:
    """A share with the ends of its interval. `colour` is a variable of the style sheet."""

    value: float
    ends: tuple[float, float]
    colour: str


@dataclass(frozen=True)
class IntervalRow:
    """A row of a chart: one share, or two (before and after) that a line joins.

    Without shares its name is a heading of the rows below. `words` stand at the end of the row,
    `mark` is Matplotlib's name of the marker, `more` follows the name where there is room.
    """

    name: str
    shares: Sequence[ShareInterval]
    words: str
    mark: str = "o"
    more: str = ""


@_styled
def intervals(
    title: str,
    rows: Sequence[IntervalRow],
    alternative: str,
    *,
    wide: bool = False,
    across: str = "",
) -> Picture:
    """Draw rows of shares with their intervals. wide: draw a wider version for wide pages too.

    across: the title of the axis.
    """

    def drawn(width: float) -> Picture:
        more = width == WIDE and any(one.more for one in rows)
        row, left, right, letters = 26, 250 if more else 92, 104, 40 if more else 14
        figure = _drawing(title, 44 + 18 * bool(across) + row * len(rows), width)
        names = [
            shortened(one.name + more * one.more, letters) if one.shares else "" for one in rows
        ]
        axes = _rows(figure, left, 24, right, row, names)
        ticks = percents().ticks
        axes.set_xticks(list(ticks), list(ticks.values()))
        axes.set_xlabel(across, labelpad=2)
        axes.grid(axis="x")
        for place, one in enumerate(rows):
            # Of two shares the first is drawn a little higher, so that no interval hides the other.
            heights = [place - 4 / row, place + 4 / row] if len(one.shares) == 2 else [place]
            if not one.shares:
                _label(axes, one.name, (0, place), (-left, -4), "ink", of="data").set(weight="bold")
                continue
            colour = _COLOURS[one.shares[-1].colour]
            axes.plot([share.value for share in one.shares], heights, color=colour, lw=2)
            for share, height in zip(one.shares, heights, strict=True):
                axes.plot(share.ends, (height, height), color=_COLOURS[share.colour], lw=1.2)
                hollow = share is not one.shares[-1]
                face = _COLOURS["back"] if hollow else colour
                _mark(axes, one.mark, (share.value, height), facecolor=face, edgecolor=colour)
            _label(axes, one.words, (1, place), (right, 0), "ink", "right", "center", "data")
        return _picture(figure, alternative)

    return replace(drawn(WIDTH), wide=drawn(WIDE).svg) if wide else drawn(WIDTH)


def as_file(picture: Picture) -> str:
    """Return the wide version of a drawing, else the only one, as the text of an SVG file.

    The file has colours for light and dark screens, and a ground of its own.
    """
    drawn = str(picture.wide or picture.svg)
    found = re.search(r'viewBox="0 0 ([0-9.]+) ([0-9.]+)"', drawn)
    assert found
    wide, high = (float(number) + 2 * _MARGIN for number in found.groups())
    style = (
        f"svg {{ {LIGHT} font-family: system-ui, 'Segoe UI', Roboto, Arial, sans-serif; "
        f"stroke-linejoin: round; }} @media (prefers-color-scheme: dark) {{ svg {{ {DARK} }} }}"
    )
    head = (
        f'xmlns="http://www.w3.org/2000/svg" width="{wide:g}" height="{high:g}" '
        f'viewBox="{-_MARGIN} {-_MARGIN} {wide:g} {high:g}"'
    )
    begun, rest = drawn.replace(found[0], head).split(">", 1)
    ground = f'<rect x="{-_MARGIN}" y="{-_MARGIN}" width="100%" height="100%" fill="var(--back)"/>'
    return f"{begun}><style>{style}</style>{ground}{rest}\n"


def _mark(axes: Axes, shape: str, place: Point, **colours: str) -> None:
    """Draw a mark, 8 pixels wide, as a path.

    Matplotlib's own markers refer to a definition by its identifier, which `_picture` removes.
    """
    style = MarkerStyle(shape)
    way = style.get_path().transformed(style.get_transform())
    there = Affine2D().scale(8 if shape == "o" else 7).translate(*axes.transData.transform(place))
    axes.add_patch(PathPatch(way, transform=there, lw=1.5, zorder=3, **colours))


@dataclass(frozen=True)
class Matrix:
    """Shares in [0, 1] by row and column, with the words in each cell."""

    rows: Sequence[str]
    columns: Sequence[str]
    shares: Sequence[Sequence[float]]
    words: Sequence[Sequence[str]]

    @classmethod
    def of_counts(
        cls, rows: Sequence[str], columns: Sequence[str], counts: Sequence[Sequence[int]]
    ) -> Self:
        """Return counts as shares of their rows. The words of a cell are its count, if not 0."""
        words = [[str(n) if n else "" for n in row] for row in counts]
        return cls(rows, columns, [shares_of(row) for row in counts], words)


@_styled
def matrix(title: str, of: Matrix, alternative: str, across: str = "", down: str = "") -> Picture:
    """Draw a matrix of squares, darker where the share is larger.

    Squares become smaller with their number. Those too small for words have tooltips only.

    across, down: titles of columns and rows.
    """
    count, left = max(len(of.columns), 1), 92
    cell = max(min((WIDTH - left - 24) / count, 34.0), 9.0)
    worded = cell >= 18
    row = min(cell, 24.0) if worded else cell
    width = max(left + cell * count + 24, float(WIDTH))  # the last slanted name needs room
    letters = min(max(map(len, of.columns), default=1), 12)
    top = 40 + 5.5 * letters if worded else 34.0
    figure = _drawing(title, top + row * len(of.rows) + 18, width)
    few = 2 if len(of.rows) > 1 and row < 11 else 1
    names = [shortened(name, 15) if i % few == 0 else "" for i, name in enumerate(of.rows)]
    axes = _rows(figure, left, top, width - left - cell * count, row, names)
    axes.set_xlim(-0.5, count - 0.5)
    above = 1 - 28 / (figure.get_figheight() * 72)
    for x, words in ((left, across), (0, down)):
        figure.text(x / width, above, words, color=_COLOURS["soft"])
    size = count - 1 / cell, len(of.rows) - 1 / row
    axes.add_patch(Rectangle((-0.5, -0.5), *size, color=_COLOURS["panel"], lw=0))
    for i, name in enumerate(of.rows):
        for j, share in enumerate(of.shares[i]):
            words = of.words[i][j]
            if share:
                axes.add_patch(
                    Rectangle(
                        *((j - 0.5, i - 0.5), 1 - 1 / cell, 1 - 1 / row),
                        color=_COLOURS["c0"],
                        lw=0,
                        alpha=max(share, 0.06),
                        gid=f"{_TIP}{name}, {of.columns[j]}: {words or '0'}",
                    )
                )
            if worded and words:
                ink = _COLOURS["on" if share > 0.55 else "ink"]
                axes.text(j, i, words, ha="center", va="center", size=10, color=ink)
    if worded:
        for j, name in enumerate(of.columns):
            written = _label(axes, shortened(name, 12), (j, -0.5), (3, 4), "ink", of="data")
            written.set(rotation=60, rotation_mode="anchor")
    return _picture(figure, alternative)


def shares_of(counts: Sequence[int]) -> list[float]:
    """Return each count as a share of the sum; 0 where the sum is 0."""
    total = sum(counts)
    return [count / total if total else 0.0 for count in counts]


@_styled
def small_charts(title: str, given: Sequence[Line], last: int, alternative: str) -> Picture:
    """Draw a small chart of shares by round, 0 to `last`, for each line; three stand in a row."""
    across, high, gap = 3, 62.0, 38.0
    cell = WIDTH / across
    figure = _drawing(title, 20 + -(-len(given) // across) * (high + gap))
    for place, one in enumerate(given):
        left, top = cell * (place % across), 34 + (high + gap) * (place // across)
        axes = _plot(figure, left, top, cell - 14, high, (0, last), (0, 1))
        axes.set_yticks((0, 0.5, 1), ("", "", ""))
        axes.grid(axis="y")
        _label(axes, shortened(one.name, 11), (0, 1), (0, 4), "ink")
        _label(axes, one.words, (1, 1), (0, 4), ha="right")
        if one.points:
            axes.plot(*zip(*one.points, strict=True), color=_COLOURS[one.colour], lw=2)
        else:
            _label(axes, "not measured", (0, 0.5), (4, 0))
    return _picture(figure, alternative)


@_styled
def gallery(shown: Sequence[tuple[NDArray[np.uint8], str, str]], alternative: str) -> Picture:
    """Draw images, [H, W] or [H, W, 3], each with two lines of text below it.

    A wide page has four in a row, a narrow one two. Pixels are drawn as sharp squares.
    """

    def drawn(width: float, across: int) -> Picture:
        cell = width / across
        figure = _drawing("", -(-len(shown) // across) * (cell + 30), width)
        for place, (pixels, *below) in enumerate(shown):
            x, y = cell * (place % across), (cell + 30) * (place // across)
            high, wide = pixels.shape[:2]
            axes = _plot(figure, x, y, cell - 10, cell - 10, (0, wide), (high, 0))
            axes.imshow(pixels, "gray", aspect="auto", interpolation="none", vmin=0, vmax=255,
                        extent=(0, wide, high, 0))  # fmt: skip
            for words, depth, kind in zip(below, (14, 27), ("ink", "soft"), strict=True):
                _label(axes, shortened(words, round(cell / 6.2)), (0, 0), (0, -depth), kind)
        return _picture(figure, alternative)

    return replace(drawn(WIDTH, 2), wide=drawn(WIDE, 4).svg)
