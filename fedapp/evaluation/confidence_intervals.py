"""95 % confidence intervals of what was measured on a site's test images.

A share of right answers has Wilson's interval (1927), which needs counts only (`wilson`).

Any other metric has the interval of the percentile bootstrap (Efron 1979). Where it is known which
images are of one patient, whole patients are drawn (the cluster bootstrap, Davison and Hinkley
1997, ch. 3.8), because images of one patient say less than as many images of different patients. A
resample is represented by weights: how often each image was drawn. Its metrics are those of the
weighted images, so that all resamples are computed at once and the images are sorted once.
scikit-learn's functions give the same numbers with these weights as `sample_weight`
(`tests/evaluation/test_classification_metrics.py`). scipy's `bootstrap` is not used: it calls a
function once for each resample, and its draws are not keyed by image set.

The difference of two AUROCs on the same images has DeLong's test (DeLong et al. 1988), computed by
ranks (X. Sun, W. Xu: Fast implementation of DeLong's algorithm, IEEE Signal Processing Letters
2014; no library that this project depends on has it). Let m images be of the class and n not.
Image i of the class is scored above this share of the n others:

    V_i = (R_i - r_i) / n,

where R_i is its rank among all scores and r_i its rank among those of its class; equal scores share
their mean rank. Image j of the others is scored below this share of the m images of the class:
W_j = 1 - (R_j - s_j) / m, with s_j its rank among the others. The AUROC is the mean of V. The
difference between two scores, whose placements are V, W and V', W', has

    variance = var(V - V') / m + var(W - W') / n.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedapp.core.rng import numpy_stream

MIN_TEST_IMAGES: Final = 20
"""With fewer test images an accuracy says little: after 10 of 20 right, it may be 30 to 70 %."""
Z95: Final = 1.959963984540054
"""97.5 % quantile of the normal distribution: 95 % lie within so many standard deviations."""
RESAMPLES: Final = 1000
"""Number of bootstrap resamples."""
Values = NDArray[np.float64]
Labels = NDArray[np.int64]


def wilson(correct: float, total: float, z: float = Z95) -> tuple[float, float]:
    """Return Wilson's interval of a share, both ends in [0, 1].

    correct: right answers, in [0, total]. total: images; without images nothing is known, and the
    interval is (0, 1). z: standard deviations on each side. Unlike mean +- standard error, it has a
    width also where no answer or every answer is right.
    """
    if total <= 0:
        return 0.0, 1.0
    share, spread = correct / total, z**2 / total
    middle = share + spread / 2
    half = math.sqrt(spread * (share * (1 - share) + spread / 4))
    low, high = (middle - half) / (1 + spread), (middle + half) / (1 + spread)
    # The ends are exact where all or nothing is right, but for rounding.
    return (low if correct else 0.0), (high if correct < total else 1.0)


def bootstrap_weights(
    images: int, purpose: str, resamples: int = RESAMPLES, groups: Labels | None = None
) -> Labels:
    """Return how often each image is drawn, [resamples, images]; each row sums to `images`, >= 1.

    The draws are keyed by `purpose` and the number of images, so that the same images have the same
    interval every time.

    groups: the number of each image's patient, [images]. Patients are then drawn in the place of
    images, as many as there are, each with all its images. A row sums to `images` only where all
    patients have equally many.
    """
    if groups is not None:
        _, of = np.unique(groups, return_inverse=True)
        return bootstrap_weights(int(of.max()) + 1, purpose, resamples)[:, of]
    stream = numpy_stream(0, "resampled", purpose, images)
    return stream.multinomial(images, np.full(images, 1 / images), size=resamples)


def resampled_counts(drawn: Labels, answers: Labels, labels: Labels, classes: int) -> Labels:
    """Return the confusion matrix of each resample, [B, C, C].

    drawn: as of `bootstrap_weights`, [B, n]. answers, labels: [n], in [0, C).
    """
    cell = np.eye(classes * classes, dtype=np.float64)[labels * classes + answers]
    counts: Labels = np.rint(drawn @ cell).astype(np.int64)
    return counts.reshape(-1, classes, classes)


def percentile_interval(values: Values) -> tuple[float, float] | None:
    """Return the middle 95 % of resampled values; None where a resample has no value (NaN)."""
    if np.isnan(values).any():
        return None
    low, high = np.quantile(values, (0.025, 0.975)).tolist()
    return low, high


def widened_interval(ends: tuple[float, float], values: Values) -> tuple[float, float]:
    """Return `ends`, widened to reach as far as the percentile interval of `values`.

    ends: the interval that counts images as independent. values: of resampled patients; without
    any, `ends` stays as it is.
    """
    other = percentile_interval(values[~np.isnan(values)]) if len(values) else None
    return ends if other is None else (min(ends[0], other[0]), max(ends[1], other[1]))


def resampled_one_vs_rest(
    drawn: Labels, scores: Values, in_class: NDArray[np.bool_], at_specificity: float
) -> tuple[Values, Values, Values]:
    """Return AUROC, average precision and the sensitivity at a specificity, by resample, [B] each.

    drawn: as of `bootstrap_weights`, [B, n]. scores: [n]. in_class: whether each image is of the
    class, [n]. at_specificity: in [0, 1]. NaN where a resample has no image of the class, or only
    such images.
    """
    order = np.argsort(-scores, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))  # the last of equal scores
    zero = np.zeros((len(drawn), 1))
    right, wrong = (
        np.hstack([zero, np.cumsum(drawn[:, order] * part[order], axis=1)[:, ends]])
        for part in (in_class, ~in_class)
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        found, taken = right / right[:, -1:], wrong / wrong[:, -1:]
        area = (np.diff(taken) * (found[:, 1:] + found[:, :-1]) / 2).sum(1)
        precision = np.nan_to_num(right[:, 1:] / (right[:, 1:] + wrong[:, 1:]))
        average = (np.diff(found) * precision).sum(1)
        reached = np.where(taken <= 1 - at_specificity + 1e-12, found, 0).max(1)
    return area, average, np.where(np.isnan(area), np.nan, reached)


@dataclass(frozen=True)
class AurocDifference:
    """Result of DeLong's test.

    gain: the AUROC of the first scores less that of the second, in [-1, 1]. error: its standard
    error. p: two-sided p-value of the hypothesis that both AUROCs are equal; 1 where both scores
    rank the images in the same way.
    """

    gain: float
    error: float
    p: float

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the gain, cut off at -1 and 1."""
        return max(self.gain - Z95 * self.error, -1.0), min(self.gain + Z95 * self.error, 1.0)


def delong_test(first: Values, second: Values, in_class: NDArray[np.bool_]) -> AurocDifference:
    """Compare the AUROCs of two scores of the same images, [n] each.

    in_class: whether each image is of the class, [n]. There must be two images or more of the
    class, and two or more that are not.
    """
    from scipy.stats import norm  # the import takes half a second, and most processes need none

    (v, w), (other_v, other_w) = (placements(scores, in_class) for scores in (first, second))
    gain = float(v.mean() - other_v.mean())
    spread = np.var(v - other_v, ddof=1) / len(v) + np.var(w - other_w, ddof=1) / len(w)
    error = math.sqrt(spread)
    if error == 0:
        return AurocDifference(gain, 0.0, 0.0 if gain else 1.0)
    return AurocDifference(gain, error, float(2 * norm.sf(abs(gain) / error)))


def placements(scores: Values, in_class: NDArray[np.bool_]) -> tuple[Values, Values]:
    """Return V [m] and W [n] of the head of this module; the mean of each is the AUROC.

    scores: [m + n]. in_class: whether each image is of the class, [m + n].
    """
    from scipy.stats import rankdata

    every = rankdata(scores)
    inside, outside = scores[in_class], scores[~in_class]
    v = (every[in_class] - rankdata(inside)) / len(outside)
    w = 1 - (every[~in_class] - rankdata(outside)) / len(inside)
    return v, w
