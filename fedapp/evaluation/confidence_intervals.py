"""How sure a number is that was measured on a site's test images: the 95 % intervals.

Of a share of right answers: Wilson's (1927), from counts alone (`wilson`).

Of any metric: the percentile bootstrap (Efron 1979), in one pass. Where images are known to be of
one patient, whole patients are drawn (the cluster bootstrap, Davison and Hinkley 1997, ch. 3.8):
images of one patient say less than as many of different ones. A resample is a weight for each
image: how often it was drawn. Its metrics are those of weighted images, so that all resamples are
worked on at once and the images are sorted once. scikit-learn's functions with these as
`sample_weight` give the same numbers (`tests/evaluation/test_classification_metrics.py`); scipy's
`bootstrap` calls a function once for each resample, and its draws are not keyed.

Of the difference of two AUROCs on the same images: DeLong et al. (1988), fast by ranks (X. Sun,
W. Xu: Fast implementation of DeLong's algorithm, IEEE Signal Processing Letters 2014; no library
that this project has knows it). With m images of the class and n others, image i of the class
beats, of the others, the share

    V_i = (R_i - r_i) / n,

R_i its rank among all scores and r_i among those of its class (equal scores share a middle rank);
of an other image j the share that it loses to is W_j = 1 - (R_j - s_j) / m. AUROC is the mean of V,
and of two tests' difference, by images,

    variance = var(V - V') / m + var(W - W') / n.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedapp.core.rng import numpy_stream

MIN_TEST_IMAGES: Final = 20
"""Test images below which an accuracy says little: 10 of 20 is anything from 30 to 70 %."""
Z95: Final = 1.959963984540054
"""The normal distribution's 97.5 % point: 95 % lie within as many deviations of the mean."""
RESAMPLES: Final = 1000
Values = NDArray[np.float64]
Labels = NDArray[np.int64]


def wilson(correct: float, total: float, z: float = Z95) -> tuple[float, float]:
    """Return Wilson's interval of a share, both ends in [0, 1].

    correct: right answers, in [0, total]. total: images; without any nothing is known: (0, 1).
    z: standard deviations each way. Unlike mean and deviation it has a width at 0 and at `total`
    right answers too.
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
    """Return how often each image is drawn, [resamples, images]; rows sum to `images` >= 1.

    The draws are keyed: the same images have the same interval every time. groups: which images
    are of one patient, [images]; then patients are drawn, each with all its images, as many as
    there are, and rows sum to that of images only where all patients have as many.
    """
    if groups is not None:
        _, of = np.unique(groups, return_inverse=True)
        return bootstrap_weights(int(of.max()) + 1, purpose, resamples)[:, of]
    stream = numpy_stream(0, "resampled", purpose, images)
    return stream.multinomial(images, np.full(images, 1 / images), size=resamples)


def resampled_counts(drawn: Labels, answers: Labels, labels: Labels, classes: int) -> Labels:
    """Return the confusion matrix of each resample, [B, C, C]; answers, labels: [n], in [0, C)."""
    cell = np.eye(classes * classes, dtype=np.float64)[labels * classes + answers]
    counts: Labels = np.rint(drawn @ cell).astype(np.int64)
    return counts.reshape(-1, classes, classes)


def percentile_interval(values: Values) -> tuple[float, float] | None:
    """Return the middle 95 % of resampled values; None where some resample has none (NaN)."""
    if np.isnan(values).any():
        return None
    low, high = np.quantile(values, (0.025, 0.975)).tolist()
    return low, high


def widened_interval(ends: tuple[float, float], values: Values) -> tuple[float, float]:
    """Return an interval by image, as wide as that of resampled patients, where there are any."""
    other = percentile_interval(values[~np.isnan(values)]) if len(values) else None
    return ends if other is None else (min(ends[0], other[0]), max(ends[1], other[1]))


def resampled_one_vs_rest(
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


@dataclass(frozen=True)
class AurocDifference:
    """gain: AUROC of the first scores less that of the second, in [-1, 1]. error: standard error.

    p: that a gain as large comes of equal AUROCs, two-sided; 1 where both rank the images alike.
    """

    gain: float
    error: float
    p: float

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the gain, within [-1, 1]."""
        return max(self.gain - Z95 * self.error, -1.0), min(self.gain + Z95 * self.error, 1.0)


def delong_test(first: Values, second: Values, of: NDArray[np.bool_]) -> AurocDifference:
    """Compare two scores of the same images. of: which are of the class; two of each at least."""
    from scipy.stats import norm  # takes half a second; most processes do without

    (v, w), (other_v, other_w) = (placements(scores, of) for scores in (first, second))
    gain = float(v.mean() - other_v.mean())
    spread = np.var(v - other_v, ddof=1) / len(v) + np.var(w - other_w, ddof=1) / len(w)
    error = math.sqrt(spread)
    if error == 0:
        return AurocDifference(gain, 0.0, 0.0 if gain else 1.0)
    return AurocDifference(gain, error, float(2 * norm.sf(abs(gain) / error)))


def placements(scores: Values, of: NDArray[np.bool_]) -> tuple[Values, Values]:
    """Return V [m] and W [n] above; the mean of each is the AUROC."""
    from scipy.stats import rankdata

    every = rankdata(scores)
    inside, outside = scores[of], scores[~of]
    v = (every[of] - rankdata(inside)) / len(outside)
    w = 1 - (every[~of] - rankdata(outside)) / len(inside)
    return v, w
