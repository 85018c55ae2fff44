"""Split-conformal prediction sets: as many classes as the coverage asked for takes.

A set holds the right class of a new image with probability >= coverage, whatever the model is
worth, if that image and the calibration images are exchangeable (as draws from one source are).
That holds on average over images and over draws of the calibration images; not for each class.
"""

import math
from fractions import Fraction
from typing import Annotated, Final, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedapp.core.settings import CLOSED

Sets = Literal["lac", "aps"]
"""lac: least ambiguous classifier (Sadinle, Lei, Wasserman 2019). The smallest sets on average; a
set may be empty. aps: adaptive prediction sets (Romano, Sesia, Candes 2020). Larger where the model
is unsure, never empty."""

DEFAULT_COVERAGE: Final = 0.9
"""Share of sets that are to hold the right class, where nobody says another."""
MIN_CALIBRATION_IMAGES: Final = 50
"""Calibration images below which the coverage may be far off: that of sets asked for 90 % from 50
images lies between 81 and 97 % in 19 of 20 draws of those images (a beta distribution's)."""
SCORE_DECIMALS: Final = 6
"""Decimals of a score that is kept."""

_Scores = tuple[Annotated[float, Field(ge=0, le=1)], ...]


@dataclass(frozen=True, config=CLOSED)
class Calibration:
    """Scores of the right classes of a site's validation images, ascending; 0: nothing better.

    They are rounded up to `SCORE_DECIMALS` decimals, which can only enlarge a set. Without any
    score nothing is known, and every set holds all classes.
    """

    lac: _Scores = ()
    aps: _Scores = ()

    def __post_init__(self) -> None:
        if len(self.lac) != len(self.aps):
            raise ValueError("lac and aps must have a score for each image")
        if any(list(scores) != sorted(scores) for scores in (self.lac, self.aps)):
            raise ValueError("scores must ascend")

    @property
    def images(self) -> int:
        """Calibration images."""
        return len(self.lac)

    def threshold(self, sets: Sets, coverage: float) -> float:
        """Return the highest score of a class in a set: `conformal_quantile` of the scores."""
        return conformal_quantile(self.aps if sets == "aps" else self.lac, coverage)


def calibrate(probabilities: Tensor, labels: Tensor) -> Calibration:
    """Score the right classes of labelled images that the model did not learn from.

    Images that have also chosen between models, or weighed the networks of one, are not quite as
    new images are: their scores are a little too good, the less so the more of them there are.

    probabilities: [n, C], n >= 0, rows sum to 1. labels: int64 [n], in [0, C).
    """
    kept = {}
    for sets in ("lac", "aps"):
        own = class_scores(probabilities, sets).gather(1, labels[:, None])[:, 0]
        up = (own * 10**SCORE_DECIMALS).ceil() / 10**SCORE_DECIMALS
        kept[sets] = tuple(up.clamp(0, 1).sort().values.tolist())
    return Calibration(**kept)


def class_scores(probabilities: Tensor, sets: Sets) -> Tensor:
    """Return how odd each class would be as the right one, float64 [n, C], in [0, 1].

    probabilities: [n, C], rows sum to 1. lac: 1 - p_c. aps: the sum of the probabilities of all
    classes ahead of c; of equal ones the first by number is ahead. That is Romano et al.'s score
    without their random draw: the class with which the sum reaches the threshold is always in the
    set, so an image has the same set every time; the price is sets that are somewhat larger.
    """
    exact = probabilities.double()
    if sets == "lac":
        return (1 - exact).clamp(0, 1)
    order = exact.argsort(dim=1, descending=True, stable=True)
    ranked = exact.gather(1, order)
    ahead = (ranked.cumsum(1) - ranked).clamp(0, 1)
    return torch.empty_like(ahead).scatter_(1, order, ahead)


def conformal_quantile(ascending: tuple[float, ...], coverage: float) -> float:
    """Return the ceil((n + 1) coverage)-th smallest of n scores, which covers a new one.

    coverage: in (0, 1). Infinity where n is too small for it (n < coverage / (1 - coverage)).
    """
    # As it is written: in floating point 0.1 + 0.2 asks for more than 0.3.
    rank = math.ceil((len(ascending) + 1) * Fraction(str(coverage)))
    return ascending[rank - 1] if rank <= len(ascending) else math.inf


def prediction_sets(
    probabilities: Tensor, calibration: Calibration, sets: Sets, coverage: float
) -> Tensor:
    """Return which classes are in each image's set, bool [n, C].

    probabilities: [n, C], rows sum to 1. coverage: in (0, 1), the least share of sets that are to
    hold the right class.
    """
    return class_scores(probabilities, sets) <= calibration.threshold(sets, coverage)


def coverage_caution(calibration: Calibration, coverage: float) -> str:
    """Return what a person must know of sets of this coverage, one sentence; empty: nothing."""
    images = calibration.images
    if not images:
        return "the model has no calibration images: every set holds all classes"
    if math.isinf(calibration.threshold("lac", coverage)):
        return (
            f"{images} calibration images are too few for a coverage of {coverage:g}: every set "
            "holds all classes"
        )
    if images < MIN_CALIBRATION_IMAGES:
        return f"weak: {images} calibration images only, so the coverage may be far from the asked"
    return ""
