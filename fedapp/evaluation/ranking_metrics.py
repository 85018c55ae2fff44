"""How well all sites' scores rank all sites' images: AUROC and average precision from counts.

For each class a site counts its test images by the bin of the class's probability: those of the
class and all others. Counts can be added, over sites and under masks. The bins are of equal width
in log odds, ln(p / (1 - p)): 0.2 from -9.8 to 9.8, and what lies beyond. With r_b images of the
class and w_b others in bin b, m and n in all,

    AUROC = sum_b r_b (w_0 + ... + w_{b-1} + w_b / 2) / (m n),

which is that of the scores rounded to their bins. That of the scores themselves differs by at most
sum_b r_b w_b / (2 m n), all pairs that one bin holds. Its interval is DeLong's
(`evaluation.confidence_intervals`) of the rounded scores, and counts images as independent.
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
"""Probabilities at which a bin ends and the next begins, [B - 1]; an edge is of the upper one."""

RANKING_COLUMNS: Final = ("auroc", "auroc_low", "auroc_high", "auroc_within", "average_precision")
"""Names of `RankingQuality`'s numbers in a row."""


def score_counts(probabilities: NDArray[np.floating], labels: Counts) -> Counts:
    """Return [C, 2 B]: by class its images by bin of its probability, then all others.

    probabilities: [n, C], in [0, 1]. labels: [n], in [0, C); or of findings [n, C], of which those
    that were not read (below 0) are not counted. Raises RunError where an answer is NaN.
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
    """How well scores tell the images of a class from all others.

    low, high: AUROC's 95 % interval. within: how far the exact AUROC may lie from it at most.
    """

    auroc: float
    average_precision: float
    low: float
    high: float
    within: float


def ranking_quality(counts: Counts, fewest: int = MIN_CLASS_IMAGES) -> RankingQuality | None:
    """Return what one class's counts [2 B] say; None: fewer than `fewest` images of it, or others.

    Average precision is sum_b (R_b - R_{b+1}) / m * R_b / (R_b + W_b), R and W counted from the
    highest bin down to b.
    """
    right, wrong = counts.reshape(2, SCORE_BINS).astype(np.float64)
    m, n = right.sum(), wrong.sum()
    if min(m, n) < max(fewest, 1):
        return None
    beats = (wrong.cumsum() - wrong / 2) / n  # by bin: the share of others below
    loses = (m - right.cumsum() + right / 2) / m
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
    """Score counts of all sites, added up class by class, beside the mean over sites."""

    total: Counts | None = None
    own: list[list[float]] = field(default_factory=list)

    def add(self, counts: Counts, one_site: bool = True) -> None:
        """Add counts [C, 2 B]. one_site: whether they are of a single site."""
        self.total = counts if self.total is None else self.total + counts
        self.own = self.own or [[] for _ in counts]
        for own, of in zip(self.own, counts, strict=True):
            if one_site and (found := ranking_quality(of, 1)) is not None:
                own.append(found.auroc)

    def rows(self) -> list[dict[str, float | int | None]]:
        """Return by class what is told; [] where nothing was added.

        auroc_of_sites: the mean of the AUROCs of sites_in_mean sites, those with an image of the
        class and another. It counts a site with one case like one with a hundred, and no ranking of
        one site's images against another's.
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
    """Return the means over the classes that have them, of rows as `Pooled.rows`; none: {}."""
    names = ("auroc", "average_precision", "auroc_of_sites")
    return {
        name: mean_of_known([one[name] for one in classes])
        for name in names
        if classes and name in classes[0]
    }


def _variance(images: Values, values: Values) -> float:
    """Return the sample variance of values that so many images have each; of one image 0."""
    count = float(images.sum())
    mean = images @ values / count
    return float(images @ (values - mean) ** 2) / max(count - 1, 1)
