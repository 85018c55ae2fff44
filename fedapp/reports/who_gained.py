"""Who gained by joining: each site's own model against the federation's, in words and as a picture.

The functions read rows of `per_site.csv` of a method that also trains a model at each site alone.
Right answers are counted on each site's own test images. A site without labels has no model of its
own; a uniform guess stands in its place.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedapp.evaluation.verdict import verdict_of_counts
from fedapp.reports.comparison.figures import WIDTH_ONE, legend, styled
from fedapp.reports.comparison.style import BLUE, GREY, VERMILION
from fedapp.reports.run_end import ALONE, FINAL, right_answers, site_name, with_guess


@dataclass(frozen=True)
class Gain:
    """One site's right answers, alone and together.

    Attributes:
        name: the site's name, else "site 3".
        labelled: number of training images with a label.
        of: number of all training images.
        images: number of test images.
        alone: right answers of the model that the site trained alone.
        together: right answers of the model that the federation gave it.
        guesses: whether the site has no model of its own, so that `alone` is a guess.
    """

    name: str
    labelled: int
    of: int
    images: int
    alone: int
    together: int
    guesses: bool

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> Self | None:
        """Return the gain of a site's row; None where the site has no test images."""
        alone, together = right_answers(with_guess(row), ALONE), right_answers(row, FINAL)
        if alone is None or together is None:
            return None
        counts = row["labelled"], row["train"], row["test"], alone, together
        return cls(site_name(row), *counts, row.get(ALONE) is None)

    @property
    def colour(self) -> str:
        """Blue where together is better, vermilion where it is worse, grey where it is equal."""
        change = self.together - self.alone
        return BLUE if change > 0 else VERMILION if change < 0 else GREY


def gains(per_site: Sequence[dict[str, Any]]) -> list[Gain]:
    """Return the gains of all sites with test images, fewest labels first."""
    rows = sorted(per_site, key=lambda row: (row["mu"], row["site"]))
    return [gain for row in rows if (gain := Gain.of_row(row)) is not None]


def in_words(found: Sequence[Gain]) -> list[str]:
    """Return two lines: who gained, and whether joining paid. `found` has at least one site."""
    alone, together = sum(one.alone for one in found), sum(one.together for one in found)
    images = sum(one.images for one in found)
    more, fewer = (sum(k * (one.together - one.alone) > 0 for one in found) for k in (1, -1))
    lost = f"{fewer} lost" if fewer else "none lost"
    return [
        f"Of {images} test images, {together} right together, {alone} alone: "
        f"{more} of {len(found)} sites gained, {lost}.",
        verdict_of_counts(together, alone, images).line,
    ]


@styled
def who_gained(found: Sequence[Gain]) -> Figure:
    """Draw for each site an arrow from its share of right answers alone to its share together."""
    figure = Figure(figsize=(WIDTH_ONE, 1.2 + 0.34 * len(found)))
    axes = figure.subplots()
    for place, one in enumerate(found):
        start, end = 100 * one.alone / one.images, 100 * one.together / one.images
        axes.plot([start, end], [place, place], color=one.colour, lw=2.2, alpha=0.6)
        axes.plot(start, place, "x" if one.guesses else "o", mfc="white", color=one.colour, ms=7)
        axes.plot(end, place, "o", color=one.colour, ms=7)
        counts = f"{one.alone} → {one.together} of {one.images}"
        axes.annotate(counts, (104, place), va="center", annotation_clip=False)
    names = [f"{one.name}: {one.labelled} of {one.of} labelled" for one in found]
    axes.set_yticks(range(len(found)), names)
    axes.invert_yaxis()
    axes.set(xlim=(0, 102), xlabel="right answers on the site's own test images, %")
    axes.grid(visible=False, axis="y")
    axes.set_title(in_words(found)[0].partition(": ")[2].rstrip("."), loc="left", weight="bold")
    shown = {"alone": ("o", "white"), "alone, without labels: guesses": ("x", GREY),
             "together": ("o", GREY)}  # fmt: skip
    named = {
        name: Line2D([], [], ls="", marker=marker, mfc=face, color=GREY, ms=7)
        for name, (marker, face) in shown.items()
        if marker == "o" or any(one.guesses for one in found)
    }
    legend(figure, named)
    return figure
