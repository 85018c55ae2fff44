"""Who gained by joining, as a picture: each site alone and together, drawn by its verdict.

The functions read rows of `per_site.csv`. Right answers are counted on each site's own test images.
A site without labels has no model of its own: it has one mark and no line.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedapp.evaluation.verdict import Outcome
from fedapp.reports.comparison.figures import WIDTH_ONE, legend, styled
from fedapp.reports.comparison.style import BLUE, GREY, VERMILION
from fedapp.reports.run_end import site_joining, site_name

DRAWN: Final[Mapping[Outcome, tuple[str, str, str]]] = {
    "paid": (BLUE, "o", "gained"),
    "harmed": (VERMILION, "s", "lost"),
    "unknown": (GREY, "D", "cannot be told"),
}
"""Colour, mark and words of each outcome."""


@dataclass(frozen=True)
class Gain:
    """One site's right answers, alone and together.

    Attributes:
        name: the site's name, else "site 3".
        labelled: number of training images with a label.
        of: number of all training images.
        images: number of answers that were compared, usually test images.
        alone: right answers of the best that the site made alone; None: it has no such model.
        together: right answers of the best that others had a part in.
        outcome: the verdict.
    """

    name: str
    labelled: int
    of: int
    images: int
    alone: int | None
    together: int
    outcome: Outcome


def gains(per_site: Sequence[dict[str, Any]]) -> list[Gain]:
    """Return what is known of all sites with test images, fewest labels first."""
    found = []
    for row in sorted(per_site, key=lambda row: (row["mu"], row["site"])):
        one = site_joining(row)
        counts = site_name(row), row["labelled"], row["train"]
        if (pairs := one.verdict.pairs) is not None:
            right = pairs.images, pairs.alone, pairs.together
            found.append(Gain(*counts, *right, one.verdict.outcome))
        elif one.right is not None:
            found.append(Gain(*counts, one.right[1], None, one.right[0], "unknown"))
    return found


@styled
def who_gained(found: Sequence[Gain]) -> Figure:
    """Draw for each site a line from its share of right answers alone to its share together."""
    figure = Figure(figsize=(WIDTH_ONE, 1.2 + 0.34 * len(found)))
    axes = figure.subplots()
    for place, one in enumerate(found):
        colour, mark, _ = DRAWN[one.outcome]
        end, counts = 100 * one.together / one.images, f"{one.together} of {one.images}"
        if one.alone is None:
            axes.plot(end, place, "x", color=GREY, ms=7)
        else:
            start, counts = 100 * one.alone / one.images, f"{one.alone} → {counts}"
            axes.plot([start, end], [place, place], color=colour, lw=2.2, alpha=0.6)
            axes.plot(start, place, mark, mfc="white", color=colour, ms=7)
            axes.plot(end, place, mark, color=colour, ms=7)
        axes.annotate(counts, (104, place), va="center", annotation_clip=False)
    names = [f"{one.name}: {one.labelled} of {one.of} labelled" for one in found]
    axes.set_yticks(range(len(found)), names)
    axes.invert_yaxis()
    axes.set(xlim=(0, 102), xlabel="right answers on the site's own test images, %")
    axes.grid(visible=False, axis="y")
    compared = [one.outcome for one in found if one.alone is not None]
    gained, lost, unknown = (compared.count(outcome) for outcome in DRAWN)
    said = f"Beyond chance: {gained} gained, {lost} lost; {unknown} cannot be told"
    axes.set_title(said, loc="left", weight="bold")
    shown = {
        words: Line2D([], [], ls="-", marker=mark, color=colour, ms=7)
        for outcome, (colour, mark, words) in DRAWN.items()
        if outcome in compared
    }
    shown["alone (hollow)"] = Line2D([], [], ls="", marker="o", mfc="white", color=GREY, ms=7)
    if len(compared) < len(found):
        shown["no labels: together"] = Line2D([], [], ls="", marker="x", color=GREY, ms=7)
    legend(figure, shown)
    return figure
