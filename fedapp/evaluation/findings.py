"""Findings: an image shows any number of F, and of some nobody knows whether it does.

Labels are int64 [n, F]: 1 there, 0 not there, below 0 not read. A network's probabilities are
[n, F], each by itself. For counts every finding is two classes, without and with it: a read finding
of an image is one sample, and no answer leaves its pair. So a confusion matrix of F findings is
[2F, 2F] with 2 x 2 blocks along its diagonal, and what works on classes works on it.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedapp.evaluation.classification_metrics import (
    METRICS,
    Counts,
    Metric,
    OneVsRest,
    Values,
    mean_of_known,
    none_if_nan,
    one_vs_rest,
)

COUNTS_NOTE: Final = (
    "Here an image shows any number of findings. Where answers are counted, each finding that was "
    "read in an image counts as an image by itself; intervals of such counts are too narrow, since "
    "findings of one image go together."
)
"""How a person is to read counts of findings."""


def flatten_findings(
    probabilities: NDArray[np.floating], labels: Counts
) -> tuple[NDArray[np.floating], Counts, Counts, Counts]:
    """Return each read finding as a sample of two classes, image by image.

    probabilities, labels: [n, F]. Returns probabilities [m, 2], labels [m], and of which image and
    which finding each is, [m].
    """
    image, of = (labels >= 0).nonzero()
    there = probabilities[image, of]
    return np.stack([1 - there, there], 1), labels[image, of], image, of


def finding_matrices(counts: Counts) -> Counts:
    """Return [F, 2, 2] of counts [2F, 2F]: without x with, true x answered, by finding."""
    size = len(counts) // 2
    each = np.arange(size)
    return counts.reshape(size, 2, size, 2)[each, :, each, :]


def metric_over_findings(metric: Metric, counts: Counts, names: int) -> float | None:
    """Return a metric of classes, counts [C, C], or the mean over findings, counts [2F, 2F].

    names: C or F. Of a finding it is the metric of its two classes; one that all images show in
    which it was read, or none, is left out. None where nothing can be said.
    """
    if len(counts) == names:
        return none_if_nan(float(METRICS[metric](counts)))
    pairs = finding_matrices(counts)
    said = pairs[(pairs.sum(2) > 0).all(1)]
    return mean_of_known([none_if_nan(float(one)) for one in METRICS[metric](said)])


def two_class_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the 2F classes of findings."""
    return tuple(one for name in names for one in (f"no {name}", name))


def one_vs_rest_by_finding(probabilities: Values, labels: Counts, at: float) -> list[OneVsRest]:
    """Return what `one_vs_rest` says of each finding, of the images in which it was read.

    probabilities, labels: [n, F]. A finding that too few images show (`MIN_CLASS_IMAGES`), or as
    few do not, has no numbers. Raises RunError where an answer is NaN.
    """
    found = []
    for scores, truth in zip(probabilities.T, labels.T, strict=True):
        read = truth >= 0
        pair = np.stack([1 - scores[read], scores[read]], 1)
        found.append(one_vs_rest(pair, truth[read], at)[1])
    return found
