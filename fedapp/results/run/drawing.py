"""Drawing in SVG: shapes with classes, and the charts made of them: lines, bars, matrices.

The page's style sheet gives the classes their colours, light and dark. Lengths are pixels of a
drawing that is `WIDTH` wide, the width of a telephone; the page puts several beside each other
where there is room.
"""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from markupsafe import Markup

WIDTH, WIDE = 360, 860
Point = tuple[float, float]

GROUP_MARKS = ("circle", "square", "diamond")
"""Shapes of sites by share of labels: colour alone says nothing."""


@dataclass(frozen=True)
class Picture:
    """A drawing that is done. width: in pixels, from `WIDTH` on.

    wide: the same for a page of `WIDE` pixels and more; None: it serves for both.
    """

    svg: Markup
    width: float
    wide: Markup | None = None


class Drawing:
    """Shapes in the order in which they are drawn."""

    def __init__(self, height: float, width: float = WIDTH) -> None:
        self.width, self.height = width, height
        self._shapes: list[Markup] = []

    def line(self, start: Point, end: Point, kind: str) -> None:
        """Draw a straight line. kind: classes of the style sheet."""
        self.path((start, end), kind)

    def path(self, points: Sequence[Point], kind: str) -> None:
        """Draw a line through points, at least one."""
        way = "L".join(f"{_n(x)} {_n(y)}" for x, y in points)
        self._shapes.append(Markup('<path class="l {}" d="M{}"/>').format(kind, way))

    def area(self, points: Sequence[Point], kind: str) -> None:
        """Fill a polygon."""
        way = "L".join(f"{_n(x)} {_n(y)}" for x, y in points)
        self._shapes.append(Markup('<path class="f {}" d="M{}Z"/>').format(kind, way))

    def box(
        self, corner: Point, size: Point, kind: str, strength: float = 1.0, tip: str = ""
    ) -> None:
        """Fill a rectangle. strength: its opacity, in [0, 1]. tip: what a mouse over it shows."""
        (x, y), (width, height) = corner, size
        shape = Markup('<rect class="f {}" x="{}" y="{}" width="{}" height="{}"').format(
            kind, _n(x), _n(y), _n(width), _n(height)
        )
        if strength < 1:
            shape += Markup(' fill-opacity="{}"').format(f"{strength:.2f}")
        tipped = Markup("><title>{}</title></rect>").format(tip) if tip else Markup("/>")
        self._shapes.append(shape + tipped)

    def mark(self, shape: str, place: Point, kind: str, size: float = 4.0) -> None:
        """Draw a mark: circle, square or diamond."""
        x, y = place
        if shape == "circle":
            what = Markup('<circle class="{}" cx="{}" cy="{}" r="{}"/>')
            self._shapes.append(what.format(kind, _n(x), _n(y), _n(size)))
            return
        if shape == "square":
            s = size * 0.9
            corners = ((x - s, y - s), (x + s, y - s), (x + s, y + s), (x - s, y + s))
        else:
            s = size * 1.25
            corners = ((x, y - s), (x + s, y), (x, y + s), (x - s, y))
        way = "L".join(f"{_n(a)} {_n(b)}" for a, b in corners)
        self._shapes.append(Markup('<path class="{}" d="M{}Z"/>').format(kind, way))

    def text(self, place: Point, words: str, kind: str = "", anchor: str = "start") -> None:
        """Write a line of text. anchor: start, middle or end."""
        self._shapes.append(
            Markup('<text class="{}" x="{}" y="{}" text-anchor="{}">{}</text>').format(
                kind, _n(place[0]), _n(place[1]), anchor, words
            )
        )

    def image(self, corner: Point, side: float, png: bytes) -> None:
        """Show a picture in a square; its pixels stay sharp squares."""
        data = b64encode(png).decode()
        what = Markup(
            '<image x="{}" y="{}" width="{}" height="{}" style="image-rendering:pixelated" '
            'href="data:image/png;base64,{}"/>'
        )
        self._shapes.append(what.format(_n(corner[0]), _n(corner[1]), _n(side), _n(side), data))

    def slanted(self, place: Point, words: str) -> None:
        """Write a column's name upwards, at 60 degrees."""
        x, y = _n(place[0]), _n(place[1])
        what = Markup('<text x="{}" y="{}" transform="rotate(-60 {} {})">{}</text>')
        self._shapes.append(what.format(x, y, x, y, words))

    def picture(self, alternative: str) -> Picture:
        """Return the drawing. alternative: what it shows, in words."""
        head = Markup('<svg role="img" aria-label="{}" viewBox="0 0 {} {}">')
        shapes = Markup("").join(self._shapes)
        begun = head.format(alternative, _n(self.width), _n(self.height))
        return Picture(begun + shapes + Markup("</svg>"), self.width)


def shortened(text: str, most: int) -> str:
    """Return a text of at most `most` characters, cut with an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 92, 28, 34
_SPACE = 13
"""Pixels between two labels."""


@dataclass(frozen=True)
class Line:
    """A line of a chart. kind: its class. dashed: told apart without colour too."""

    name: str
    points: Sequence[Point]
    kind: str
    dashed: bool = False


@dataclass(frozen=True)
class Axis:
    """A range and what it is of. words: of a tick's value."""

    low: float
    high: float
    title: str
    ticks: Sequence[tuple[float, str]]

    def share(self, value: float) -> float:
        """Return where a value lies, 0 to 1 within the range."""
        return (value - self.low) / (self.high - self.low or 1)


def percents(title: str = "") -> Axis:
    """Return the axis of a share, in percent."""
    return Axis(0, 1, title, [(v / 4, f"{25 * v} %") for v in range(5)])


def rounds_axis(last: int) -> Axis:
    """Return the axis of rounds."""
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if last / s <= 8 or s == 1000)
    return Axis(0, max(last, 1), "round", [(n, str(n)) for n in range(0, last + 1, step)])


def upto(most: float, title: str, words: Sequence[str]) -> Axis:
    """Return an axis from 0 to `most`, with the words for 0, the half and the whole."""
    return Axis(0, most or 1, title, list(zip((0, most / 2, most), words, strict=True)))


def line_chart(
    title: str,
    lines: Sequence[Line],
    across: Axis,
    up: Axis,
    alternative: str,
    bands: Sequence[Line] = (),
    diagonal: bool = False,
) -> Picture:
    """Return lines, each named at its end. bands: areas behind them, as closed ways."""
    drawing = Drawing(220)
    left = max(_LEFT, 6 * max(len(words) for _, words in up.ticks) + 8)
    width, height = WIDTH - left - _RIGHT, 220 - _TOP - _BOTTOM

    def at(point: Point) -> Point:
        x, y = across.share(point[0]), up.share(point[1])
        return left + width * x, _TOP + height * (1 - y)

    drawing.text((0, 12), title, "head")
    for value, words in up.ticks:
        _, y = at((across.low, value))
        drawing.line((left, y), (left + width, y), "grid")
        drawing.text((left - 5, y + 4), words, "soft", "end")
    for value, words in across.ticks:
        x, _ = at((value, up.low))
        drawing.text((x, _TOP + height + 14), words, "soft", "middle")
    drawing.text((left + width / 2, 218), across.title, "soft", "middle")
    if diagonal:
        drawing.line(at((across.low, up.low)), at((across.high, up.high)), "soft dash")
    for band in bands:
        drawing.area([at(point) for point in band.points], f"band {band.kind}")
    for line in lines:
        if line.points:
            drawing.path([at(p) for p in line.points], line.kind + (" dash" if line.dashed else ""))
    ends = [(at(line.points[-1])[1], line) for line in lines if line.points and line.name]
    for y, line in _apart(ends):
        drawing.text((left + width + 6, y + 4), shortened(line.name, 14), f"ink {line.kind}")
    return drawing.picture(alternative)


def _apart(ends: Sequence[tuple[float, Line]]) -> list[tuple[float, Line]]:
    """Return the labels' places from above, no two of them over each other."""
    placed: list[tuple[float, Line]] = []
    for y, line in sorted(ends, key=lambda end: end[0]):
        lowest = placed[-1][0] + _SPACE if placed else y
        placed.append((max(y, lowest), line))
    return placed


@dataclass(frozen=True)
class Bar:
    """One bar: pieces that follow each other, each with its class; words: at its end."""

    name: str
    pieces: Sequence[tuple[float, str]]
    words: str


def bars(title: str, given: Sequence[Bar], alternative: str) -> Picture:
    """Return bars from left to right, one below the other, the longest as long as there is room."""
    row, left, right = 20, 110, 116
    drawing = Drawing(24 + row * len(given))
    most = max((sum(size for size, _ in bar.pieces) for bar in given), default=0) or 1
    room = WIDTH - left - right
    drawing.text((0, 12), title, "head")
    for place, bar in enumerate(given):
        y, x = 22 + row * place, float(left)
        drawing.text((left - 6, y + 12), shortened(bar.name, 17), "", "end")
        for size, kind in bar.pieces:
            drawing.box((x, y + 2), (room * size / most, row - 6), kind)
            x += room * size / most
        drawing.text((x + 6, y + 12), bar.words, "soft")
    return drawing.picture(alternative)


@dataclass(frozen=True)
class Matrix:
    """Shares in [0, 1] by row and column; words: what a cell says."""

    rows: Sequence[str]
    columns: Sequence[str]
    shares: Sequence[Sequence[float]]
    words: Sequence[Sequence[str]]

    @classmethod
    def of_counts(
        cls, rows: Sequence[str], columns: Sequence[str], counts: Sequence[Sequence[int]]
    ) -> Self:
        """Return the counts as shares of their rows; a cell says its count, of none nothing."""
        words = [[str(n) if n else "" for n in row] for row in counts]
        return cls(rows, columns, [shares_of(row) for row in counts], words)


def matrix(title: str, of: Matrix, alternative: str, across: str = "", down: str = "") -> Picture:
    """Return a matrix of squares, darker where the share is larger; across, down: what they are.

    Squares shrink with their number; from 20 columns on they bear no words but a mouse's tip.
    """
    count = max(len(of.columns), 1)
    left = 92
    cell = max(min((WIDTH - left - 24) / count, 34.0), 9.0)
    worded = cell >= 18
    row = min(cell, 24.0) if worded else cell
    width = max(left + cell * count + 24, float(WIDTH))  # the last slanted name needs room
    letters = min(max(map(len, of.columns), default=1), 12)
    top = 40 + 5.5 * letters if worded else 34.0
    drawing = Drawing(top + row * len(of.rows) + 18, width)
    drawing.text((0, 12), title, "head")
    drawing.text((left, 28), across, "soft")
    drawing.text((0, 28), down, "soft")
    small = len(of.rows) > 1 and row < 11
    drawing.box((left, top), (cell * count - 1, row * len(of.rows) - 1), "empty")
    for i, name in enumerate(of.rows):
        y = top + row * i
        if not small or i % 2 == 0:
            drawing.text((left - 6, y + row / 2 + 4), shortened(name, 15), "", "end")
        for j, share in enumerate(of.shares[i]):
            corner, size = (left + cell * j, y), (cell - 1, row - 1)
            words = of.words[i][j]
            tip = f"{name}, {of.columns[j]}: {words or '0'}"
            if share:
                drawing.box(corner, size, "heat", max(share, 0.06), tip)
            if worded and words:
                kind = "cell on" if share and share > 0.55 else "cell"
                drawing.text((corner[0] + cell / 2 - 0.5, y + row / 2 + 3.5), words, kind, "middle")
    for j, name in enumerate(of.columns):
        if worded:
            x, y = left + cell * (j + 0.5) + 3, top - 4
            drawing.slanted((x, y), shortened(name, 12))
    return drawing.picture(alternative)


def shares_of(counts: Sequence[int]) -> list[float]:
    """Return each count's share of their sum; 0 without any."""
    total = sum(counts)
    return [count / total if total else 0.0 for count in counts]
