"""AUROC and average precision over the images of all sites, from histograms of scores.

For each class a site makes two histograms of the probability of that class: one of its test images
of the class, one of all its other test images. Histograms can be added, over sites and under masks
(secure aggregation), so that no site sends the score of a single image. The bins have equal width
in log odds, ln(p / (1 - p)): 0.2 from -9.8 to 9.8, and one bin beyond each end. With r_b images of
the class and w_b others in bin b, m and n in total,

    AUROC = sum_b r_b (w_0 + ... + w_{b-1} + w_b / 2) / (m n).

This is the AUROC of the scores rounded to their bins. The AUROC of the scores themselves differs
from it by at most sum_b r_b w_b / (2 m n): half of all pairs that lie in one bin. The confidence
interval is DeLong's for the rounded scores (`evaluation.confidence_intervals`); it counts images as
independent.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedapp.evaluation.classification_metrics import (
    MIN_CLASS_IMAGES,
    Counts,
    Values,
    check_finite,
    mean_of_known,
)
from fedapp.evaluation.confidence_intervals import Z95
from fedapp.protocol.messages import SCORE_BINS

BIN_EDGES: Final[Values] = 1 / (1 + np.exp(-0.2 * np.arange(1 - SCORE_BINS // 2, SCORE_BINS // 2)))
"""Inner edges of the bins, as probabilities, [B - 1]; an edge itself lies in the upper bin."""

RANKING_COLUMNS: Final = ("auroc", "auroc_low", "auroc_high", "auroc_within", "average_precision")
"""Keys of the numbers of a `RankingQuality` in a row of `PooledScores.rows`."""


def score_counts(probabilities: NDArray[np.floating], labels: Counts) -> Counts:
    """Return the histograms of scores, [C, 2 B]: by class, those of its images, then of the rest.

    probabilities: [n, C], in [0, 1]. labels: [n], in [0, C); or [n, C] of findings, of which those
    that were not read (below 0) are not counted. Raises RunError where a probability is NaN or
    infinite.
    """
    scores = probabilities.astype(np.float64)
    check_finite(scores)
    classes = scores.shape[1]
    hot = labels if labels.ndim == 2 else np.equal.outer(labels, np.arange(classes)).astype(int)
    place = np.searchsorted(BIN_EDGES, scores, side="right")
    place += np.where(hot == 1, 0, SCORE_BINS)
    return np.stack(
        [
            np.bincount(of[known >= 0], minlength=2 * SCORE_BINS)
            for of, known in zip(place.T, hot.T, strict=True)
        ]
    )


@dataclass(frozen=True)
class RankingQuality:
    """How well scores separate the images of a class from all others; all in [0, 1].

    auroc: of the rounded scores; low, high: its 95 % interval. within: by how much the AUROC of the
    scores themselves may differ from it at most.
    """

    auroc: float
    average_precision: float
    low: float
    high: float
    within: float


def ranking_quality(counts: Counts, fewest: int = MIN_CLASS_IMAGES) -> RankingQuality | None:
    """Return AUROC and average precision of one class from its two histograms, counts [2 B].

    None where fewer than `fewest` images are of the class, or fewer are not. Average precision is
    sum_b (R_b - R_{b+1}) / m * R_b / (R_b + W_b), where R_b and W_b count the images of the class
    and the others in bin b and all bins above.
    """
    right, wrong = counts.reshape(2, SCORE_BINS).astype(np.float64)
    m, n = right.sum(), wrong.sum()
    if min(m, n) < max(fewest, 1):
        return None
    beats = (wrong.cumsum() - wrong / 2) / n  # V of DeLong by bin: share of the others below
    loses = (m - right.cumsum() + right / 2) / m  # W by bin: share of the class above
    auroc = float(right @ beats / m)
    error = math.sqrt(_variance(right, beats) / m + _variance(wrong, loses) / n)
    down, all_down = right[::-1].cumsum(), (right + wrong)[::-1].cumsum()
    precise = np.divide(down, all_down, out=np.zeros_like(down), where=all_down > 0)
    return RankingQuality(
        auroc,
        float(right[::-1] @ precise / m),
        max(auroc - Z95 * error, 0.0),
        min(auroc + Z95 * error, 1.0),
        float(right @ wrong / (2 * m * n)),
    )


@dataclass
class PooledScores:
    """Sums the histograms of all sites, and collects the AUROC of each site.

    total: the sum, [C, 2 B]. own: by class, the AUROC of each site that has one.
    """

    total: Counts | None = None
    own: list[list[float]] = field(default_factory=list)

    def add(self, counts: Counts, one_site: bool = True) -> None:
        """Add histograms, counts [C, 2 B].

        one_site: whether they are of a single site; otherwise they are a sum over several sites,
        and no site's own AUROC is known.
        """
        self.total = counts if self.total is None else self.total + counts
        self.own = self.own or [[] for _ in counts]
        for own, of in zip(self.own, counts, strict=True):
            if one_site and (found := ranking_quality(of, 1)) is not None:
                own.append(found.auroc)

    def rows(self) -> list[dict[str, float | int | None]]:
        """Return a row for each class; [] where nothing was added.

        auroc_of_sites: the mean AUROC over the sites that have an image of the class and another
        image; sites_in_mean: how many these are. This mean gives a site with one case the weight of
        a site with a hundred, and does not compare scores between sites.
        """
        if self.total is None:
            return []
        rows = []
        for counts, own in zip(self.total, self.own, strict=True):
            one = ranking_quality(counts)
            row: dict[str, float | int | None] = dict.fromkeys(RANKING_COLUMNS)
            if one is not None:
                each = one.auroc, one.low, one.high, one.within, one.average_precision
                row |= dict(zip(RANKING_COLUMNS, each, strict=True))
            row["auroc_of_sites"] = sum(own) / len(own) if own else None
            rows.append({**row, "sites_in_mean": len(own)})
        return rows


def class_means(classes: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the means over classes of the numbers in rows of `PooledScores.rows`.

    A class without a number is left out of its mean. {} without rows, or where they have no scores.
    """
    names = ("auroc", "average_precision", "auroc_of_sites")
    return {
        name: mean_of_known([one[name] for one in classes])
        for name in names
        if classes and name in classes[0]
    }


def _variance(images: Values, values: Values) -> float:
    """Return the sample variance of values, each of which so many images have; 0 of one image."""
    count = float(images.sum())
    mean = images @ values / count
    return float(images @ (values - mean) ** 2) / max(count - 1, 1)
