"""Drawing in SVG: shapes with classes; the page's style sheet gives their colours, light and dark.

Lengths are pixels of a drawing that is `WIDTH` wide, the width of a telephone; the page puts
several beside each other where there is room.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

WIDTH = 360
Point = tuple[float, float]

GROUP_MARKS = ("circle", "square", "diamond")
"""Shapes of sites by share of labels: colour alone says nothing."""


@dataclass(frozen=True)
class Picture:
    """A drawing that is done. width: in pixels, from `WIDTH` on."""

    svg: Markup
    width: float


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
