"""Split-conformal prediction: sets of classes that hold the right one with a given probability.

The set of a new image holds its right class with probability >= coverage, however good or bad the
model is, if that image and the calibration images are exchangeable (as draws from one source are).
The guarantee is an average over images and over draws of the calibration images. It does not hold
for each class by itself.
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
"""Kind of prediction set. lac: least ambiguous classifier (Sadinle, Lei, Wasserman 2019), which has
the smallest sets on average; a set may be empty. aps: adaptive prediction sets (Romano, Sesia,
Candes 2020), which are larger where the model is unsure and never empty."""

DEFAULT_COVERAGE: Final = 0.9
"""Default of the coverage: the share of sets that hold the right class."""
MIN_CALIBRATION_IMAGES: Final = 50
"""With fewer calibration images a caution is given. With 50 images, and 90 % asked for, the true
coverage lies between 81 and 97 % in 19 of 20 draws of these images (a beta distribution)."""
SCORE_DECIMALS: Final = 6
"""Scores are kept with so many decimals."""

_Scores = tuple[Annotated[float, Field(ge=0, le=1)], ...]


@dataclass(frozen=True, config=CLOSED)
class Calibration:
    """Nonconformity scores of the right classes of a site's validation images, ascending.

    A score of 0 means that the model ranks no class above the right one.

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
        """Number of calibration images."""
        return len(self.lac)

    def threshold(self, sets: Sets, coverage: float) -> float:
        """Return the highest score that a class of a set may have (`conformal_quantile`)."""
        return conformal_quantile(self.aps if sets == "aps" else self.lac, coverage)


def calibrate(probabilities: Tensor, labels: Tensor) -> Calibration:
    """Return the scores of the right classes of labelled images that the model did not learn from.

    Images by which the model was selected, or by which the networks of a mixture were weighted, are
    not quite like new images: their scores are a little too good. The more images there are, the
    smaller this effect is.

    probabilities: [n, C], n >= 0, rows sum to 1. labels: int64 [n], in [0, C).
    """
    kept = {}
    for sets in ("lac", "aps"):
        own = class_scores(probabilities, sets).gather(1, labels[:, None])[:, 0]
        up = (own * 10**SCORE_DECIMALS).ceil() / 10**SCORE_DECIMALS
        kept[sets] = tuple(up.clamp(0, 1).sort().values.tolist())
    return Calibration(**kept)


def class_scores(probabilities: Tensor, sets: Sets) -> Tensor:
    """Return the nonconformity score of each class, float64 [n, C], in [0, 1]; high is unusual.

    probabilities: [n, C], rows sum to 1. The score of class c is 1 - p_c for "lac". For "aps" it is
    the sum of the probabilities of all classes ranked above c; of equally probable classes the one
    with the lower number ranks higher. The latter is the score of Romano et al. without their
    random draw: the class with which the sum reaches the threshold is always in the set. So an
    image has the same set every time, and sets are somewhat larger.
    """
    exact = probabilities.double()
    if sets == "lac":
        return (1 - exact).clamp(0, 1)
    order = exact.argsort(dim=1, descending=True, stable=True)
    ranked = exact.gather(1, order)
    ahead = (ranked.cumsum(1) - ranked).clamp(0, 1)
    return torch.empty_like(ahead).scatter_(1, order, ahead)


def conformal_quantile(ascending: tuple[float, ...], coverage: float) -> float:
    """Return the ceil((n + 1) coverage)-th smallest of n scores: the threshold of the sets.

    coverage: in (0, 1). The threshold is infinite where n is too small for the coverage, that is,
    n < coverage / (1 - coverage).
    """
    # A fraction of the decimal digits: in floating point (n + 1) coverage may come out above an
    # integer that it equals, and the rank would be one too high.
    rank = math.ceil((len(ascending) + 1) * Fraction(str(coverage)))
    return ascending[rank - 1] if rank <= len(ascending) else math.inf


def prediction_sets(
    probabilities: Tensor, calibration: Calibration, sets: Sets, coverage: float
) -> Tensor:
    """Return which classes are in the prediction set of each image, bool [n, C].

    probabilities: [n, C], rows sum to 1. coverage: probability with which a set holds the right
    class, in (0, 1).
    """
    return class_scores(probabilities, sets) <= calibration.threshold(sets, coverage)


def coverage_caution(calibration: Calibration, coverage: float) -> str:
    """Return a sentence that warns of sets from too few calibration images; "": they suffice."""
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
