"""Findings (multi-label classification): an image may show any number of F findings.

Labels are int64 [n, F]: 1 the image shows the finding, 0 it does not, below 0 nobody has read the
image for it. The probabilities of a network are [n, F] and independent of each other. For counting,
a finding is a pair of classes, "without" and "with": each finding that was read in an image is one
sample, and its answer is one of the two classes of the pair. So the confusion matrix of F findings
is [2F, 2F] with 2 x 2 blocks on its diagonal, and functions for classes work on it too.
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
"""Explains counts of findings to the reader of a report."""


def flatten_findings(
    probabilities: NDArray[np.floating], labels: Counts
) -> tuple[NDArray[np.floating], Counts, Counts, Counts]:
    """Return each finding that was read as a sample of two classes, image by image.

    probabilities, labels: [n, F]. Returns, of the m samples, the probabilities [m, 2], the labels
    [m], the number of the image [m] and that of the finding [m].
    """
    image, of = (labels >= 0).nonzero()
    there = probabilities[image, of]
    return np.stack([1 - there, there], 1), labels[image, of], image, of


def finding_matrices(counts: Counts) -> Counts:
    """Return the 2 x 2 confusion matrix of each finding, [F, 2, 2]: true x predicted class.

    counts: the confusion matrix of all findings, [2F, 2F].
    """
    size = len(counts) // 2
    each = np.arange(size)
    return counts.reshape(size, 2, size, 2)[each, :, each, :]


def metric_over_findings(metric: Metric, counts: Counts, names: int) -> float | None:
    """Return a metric of classes, or its mean over findings; None where it is not defined.

    names: the number of classes, C, or of findings, F. counts: [C, C] of classes, [2F, 2F] of
    findings. The metric of a finding is that of its two classes. A finding that all images show in
    which it was read, or that none shows, is left out of the mean.
    """
    if len(counts) == names:
        return none_if_nan(float(METRICS[metric](counts)))
    pairs = finding_matrices(counts)
    with_both_classes = pairs[(pairs.sum(2) > 0).all(1)]
    return mean_of_known([none_if_nan(float(one)) for one in METRICS[metric](with_both_classes)])


def two_class_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the 2F classes that stand for F findings."""
    return tuple(one for name in names for one in (f"no {name}", name))


def one_vs_rest_by_finding(
    probabilities: Values, labels: Counts, at_specificity: float
) -> list[OneVsRest]:
    """Return what `one_vs_rest` finds for each finding, on the images in which it was read.

    probabilities, labels: [n, F]. at_specificity: where sensitivities are read off. A
    finding has no numbers where fewer than `MIN_CLASS_IMAGES` images show it, or do not. Raises
    RunError where a probability is NaN or infinite.
    """
    found = []
    for scores, truth in zip(probabilities.T, labels.T, strict=True):
        read = truth >= 0
        pair = np.stack([1 - scores[read], scores[read]], 1)
        found.append(one_vs_rest(pair, truth[read], at_specificity)[1])
    return found
