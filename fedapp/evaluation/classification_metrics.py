"""Metrics of classification: of confusion matrices, and of probabilities.

The first kind needs a confusion matrix only, which every site sends. The functions work on many
matrices at once, as the bootstrap needs it (`evaluation.confidence_intervals`); scikit-learn's take
one list of labels at a time. They give the same numbers as scikit-learn's
(`tests/evaluation/test_classification_metrics.py`).

The second kind needs the probability of every image, so that only the site itself can compute it.
These functions call scikit-learn.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedapp.core.errors import RunError

Metric = Literal["accuracy", "balanced_accuracy", "f1", "kappa"]
"""Metrics of a confusion matrix, by one of which a model is selected (`rounds.chosen_by`)."""

MIN_CLASS_IMAGES: Final = 10
"""With fewer images a class is not judged: after 9 of 9 right, 70 % is still possible."""

Counts = NDArray[np.int64]
"""Confusion matrices [..., C, C]: number of images by true class (rows) and predicted class."""
Values = NDArray[np.float64]


def accuracy(counts: Counts) -> Values:
    """Return the share of right answers [...], in [0, 1]. It is NaN where there are no images."""
    return _share(_right(counts).sum(-1), counts.sum((-2, -1)))


def sensitivity(counts: Counts) -> Values:
    """Return the sensitivity (recall) of each class [..., C]; NaN for a class without images."""
    return _share(_right(counts), counts.sum(-1))


def specificity(counts: Counts) -> Values:
    """Return the specificity of each class [..., C], one against the rest; NaN without a rest."""
    others = counts.sum((-2, -1))[..., None] - counts.sum(-1)
    return _share(others - (counts.sum(-2) - _right(counts)), others)


def balanced_accuracy(counts: Counts) -> Values:
    """Return the mean sensitivity over the classes that have images [...], in [0, 1].

    It is NaN where no class has images.
    """
    return _mean(sensitivity(counts))


def f1(counts: Counts) -> Values:
    """Return macro F1 [...], in [0, 1]: the mean over classes that have images or answers.

    F1 of a class is 2 right / (images of the class + answers of the class).
    """
    return _mean(_share(2 * _right(counts), counts.sum(-1) + counts.sum(-2)))


def kappa(counts: Counts) -> Values:
    """Return Cohen's kappa (1960) [...], in [-1, 1].

    kappa = (p - e) / (1 - e), where p is the accuracy and e the accuracy that the same answers
    would have in random order: 0 is chance. It is NaN where e is 1, that is, where all images and
    all answers are of one class.
    """
    images = counts.sum((-2, -1)).astype(float)
    expected = (counts.sum(-1) * counts.sum(-2)).sum(-1)
    return _share(_right(counts).sum(-1) * images - expected, images**2 - expected)


METRICS: Final[dict[Metric, Callable[[Counts], Values]]] = {
    "accuracy": accuracy,
    "balanced_accuracy": balanced_accuracy,
    "f1": f1,
    "kappa": kappa,
}
METRIC_NAMES: Final[dict[Metric, str]] = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "f1": "F1",
    "kappa": "kappa",
}
"""The names of the metrics in texts for people."""


def metric_value(metric: Metric, confusion: Sequence[Sequence[int]]) -> float | None:
    """Return a metric of one confusion matrix [C][C]; None where it is not defined."""
    return none_if_nan(float(METRICS[metric](np.asarray(confusion, dtype=np.int64))))


def none_if_nan(value: float) -> float | None:
    """Return the number, or None in the place of NaN, which JSON does not have."""
    return None if np.isnan(value) else value


def enough_images_per_class(counts: Counts) -> bool:
    """Return whether every class that occurs has `MIN_CLASS_IMAGES` images or more.

    Otherwise a mean over classes says little: one image of a rare class moves it a lot.
    """
    images = counts.sum(-1)
    return bool(images.any() and (images[images > 0] >= MIN_CLASS_IMAGES).all())


def sensitivity_shortfall(least: float, confusion: Sequence[Sequence[int]]) -> float:
    """Return how far the sensitivity of the worst class lies below `least`, in [0, 1].

    It is 0 where no class lies below. Only classes with `MIN_CLASS_IMAGES` images or more count:
    the sensitivity of a smaller class is not known well enough. confusion: [C][C], true class x
    predicted class.
    """
    counts = np.asarray(confusion, dtype=np.int64)
    of_large_classes = sensitivity(counts)[counts.sum(-1) >= MIN_CLASS_IMAGES]
    return max(least - float(of_large_classes.min()), 0.0) if len(of_large_classes) else 0.0


@dataclass(frozen=True)
class OneVsRest:
    """How well probabilities separate one class from the rest. None: not known.

    images: number of images of the class. auroc, average_precision: in [0, 1]. sensitivity_at: the
    largest sensitivity that is reached with the specificity that was asked for, in [0, 1].
    """

    images: int
    auroc: float | None
    average_precision: float | None
    sensitivity_at: float | None


def one_vs_rest(probabilities: Values, labels: Counts, at_specificity: float) -> list[OneVsRest]:
    """Return for each class how well its probability separates it from the rest (scikit-learn).

    probabilities: [n, C]. labels: [n], in [0, C). at_specificity: the specificity at which
    sensitivities are read off, in [0, 1]. A class has no numbers where it, or the rest, has fewer
    than `MIN_CLASS_IMAGES` images. Raises RunError where a probability is NaN or infinite.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

    check_finite(probabilities)
    found = []
    for c, scores in enumerate(probabilities.T):
        in_class = labels == c
        images = int(in_class.sum())
        if not MIN_CLASS_IMAGES <= images <= len(labels) - MIN_CLASS_IMAGES:
            found.append(OneVsRest(images, None, None, None))
            continue
        wrong, right, _ = roc_curve(in_class, scores, drop_intermediate=False)
        found.append(
            OneVsRest(
                images,
                float(roc_auc_score(in_class, scores)),
                float(average_precision_score(in_class, scores)),
                float(right[wrong <= 1 - at_specificity + 1e-12].max()),
            )
        )
    return found


def mean_of_known(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that are known; None where none is."""
    known = [one for one in values if one is not None]
    return sum(known) / len(known) if known else None


def brier(probabilities: Values, labels: Counts) -> float | None:
    """Return the Brier score (scikit-learn); 0 is best, None where there are no images.

    It lies in [0, 1] for two classes and in [0, 2] for more. probabilities: [n, C]. labels: [n].
    Raises RunError where a probability is NaN or infinite.
    """
    from sklearn.metrics import brier_score_loss

    check_finite(probabilities)
    if not len(labels):
        return None
    classes = probabilities.shape[1]
    answers = probabilities if classes > 2 else probabilities[:, 1]
    return float(brier_score_loss(labels, answers, labels=list(range(classes))))


def check_finite(probabilities: Values) -> None:
    """Raise RunError where a probability is NaN or infinite: no metric of it has a meaning."""
    if not np.isfinite(probabilities).all():
        raise RunError("the model answers NaN: use one of another round or site")


def confusion_matrix(probabilities: Values, labels: Counts) -> Counts:
    """Return the confusion matrix [C, C] of the most probable classes.

    probabilities: [n, C]. labels: [n], in [0, C).
    """
    return confusion_of_answers(probabilities.argmax(1), labels, probabilities.shape[1])


def confusion_of_answers(predicted: Counts, labels: Counts, classes: int) -> Counts:
    """Return the confusion matrix [C, C] of answers. predicted, labels: [n], in [0, C)."""
    place = labels * classes + predicted
    return np.bincount(place, minlength=classes**2).reshape(classes, classes)


def _right(counts: Counts) -> Counts:
    return np.diagonal(counts, axis1=-2, axis2=-1)


def _share(part: NDArray[np.generic], whole: NDArray[np.generic]) -> Values:
    with np.errstate(invalid="ignore", divide="ignore"):
        share: Values = np.true_divide(part, whole)
    return share


def _mean(by_class: Values) -> Values:
    """Return the mean over the classes whose value is not NaN; NaN where all are.

    NumPy's `nanmean` does the same, but warns where all are NaN.
    """
    there = ~np.isnan(by_class)
    return _share(np.where(there, by_class, 0).sum(-1), there.sum(-1))
