"""Intervals by resampling a site's images: the percentile bootstrap (Efron 1979), in one pass.

Where images are known to be of one patient, whole patients are drawn (the cluster bootstrap,
Davison and Hinkley 1997, ch. 3.8): images of one patient say less than as many of different ones.

A resample is a weight for each image: how often it was drawn. Its metrics are those of weighted
images, so that all resamples are worked on at once and the images are sorted once. scikit-learn's
functions with these as `sample_weight` give the same numbers (`tests/learn/test_resampled.py`).
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedapp.ground.rng import numpy_stream

RESAMPLES: Final = 1000
Values = NDArray[np.float64]
Labels = NDArray[np.int64]


def weights(
    images: int, purpose: str, resamples: int = RESAMPLES, groups: Labels | None = None
) -> Labels:
    """Return how often each image is drawn, [resamples, images]; rows sum to `images` >= 1.

    The draws are keyed: the same images have the same interval every time. groups: which images
    are of one patient, [images]; then patients are drawn, each with all its images, as many as
    there are, and rows sum to that of images only where all patients have as many.
    """
    if groups is not None:
        _, of = np.unique(groups, return_inverse=True)
        return weights(int(of.max()) + 1, purpose, resamples)[:, of]
    stream = numpy_stream(0, "resampled", purpose, images)
    return stream.multinomial(images, np.full(images, 1 / images), size=resamples)


def resampled_counts(drawn: Labels, answers: Labels, labels: Labels, classes: int) -> Labels:
    """Return the confusion matrix of each resample, [B, C, C]; answers, labels: [n], in [0, C)."""
    cell = np.eye(classes * classes, dtype=np.float64)[labels * classes + answers]
    counts: Labels = np.rint(drawn @ cell).astype(np.int64)
    return counts.reshape(-1, classes, classes)


def interval(values: Values) -> tuple[float, float] | None:
    """Return the middle 95 % of resampled values; None where some resample has none (NaN)."""
    if np.isnan(values).any():
        return None
    low, high = np.quantile(values, (0.025, 0.975)).tolist()
    return low, high


def wider(ends: tuple[float, float], values: Values) -> tuple[float, float]:
    """Return an interval by image, as wide as that of resampled patients, where there are any."""
    other = interval(values[~np.isnan(values)]) if len(values) else None
    return ends if other is None else (min(ends[0], other[0]), max(ends[1], other[1]))


def one_against_rest(
    drawn: Labels, scores: Values, of: NDArray[np.bool_], at: float
) -> tuple[Values, Values, Values]:
    """Return AUROC, average precision and the sensitivity at a specificity of each resample, [B].

    drawn: [B, n]. scores: [n]. of: [n], whether an image is of the class. NaN where a resample has
    no image of the class, or none of the others.
    """
    order = np.argsort(-scores, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))  # the last of equal scores
    zero = np.zeros((len(drawn), 1))
    right, wrong = (
        np.hstack([zero, np.cumsum(drawn[:, order] * part[order], axis=1)[:, ends]])
        for part in (of, ~of)
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        found, taken = right / right[:, -1:], wrong / wrong[:, -1:]
        area = (np.diff(taken) * (found[:, 1:] + found[:, :-1]) / 2).sum(1)
        precision = np.nan_to_num(right[:, 1:] / (right[:, 1:] + wrong[:, 1:]))
        average = (np.diff(found) * precision).sum(1)
        reached = np.where(taken <= 1 - at + 1e-12, found, 0).max(1)
    return area, average, np.where(np.isnan(area), np.nan, reached)
