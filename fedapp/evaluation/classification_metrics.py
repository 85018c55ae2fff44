"""What a model's answers are worth beside accuracy: metrics of counts, and of probabilities.

Those of counts are of a confusion matrix, which a site sends anyway; any number of matrices is
worked on at once, so that resampled ones are (`evaluation.confidence_intervals`). They are the
definitions, and equal scikit-learn's (`tests/evaluation/test_classification_metrics.py`), whose
functions take one list of labels at a time. Those of probabilities are scikit-learn's; only the
site itself can have them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedapp.core.errors import RunError

Metric = Literal["accuracy", "balanced_accuracy", "f1", "kappa"]
"""Metrics of counts, by which a model can be chosen."""

MIN_CLASS_IMAGES: Final = 10
"""Images of a class below which nothing is said of it: 9 of 9 right may be anything from 70 %."""

Counts = NDArray[np.int64]
"""Images [..., C, C], true class x predicted class."""
Values = NDArray[np.float64]


def accuracy(counts: Counts) -> Values:
    """Return the share of right answers [...], in [0, 1]; NaN without images."""
    return _share(_right(counts).sum(-1), counts.sum((-2, -1)))


def sensitivity(counts: Counts) -> Values:
    """Return by class the share of its images that are found [..., C]; NaN where it has none."""
    return _share(_right(counts), counts.sum(-1))


def specificity(counts: Counts) -> Values:
    """Return by class the share of all other images that are not taken for it [..., C]."""
    others = counts.sum((-2, -1))[..., None] - counts.sum(-1)
    return _share(others - (counts.sum(-2) - _right(counts)), others)


def balanced_accuracy(counts: Counts) -> Values:
    """Return the mean sensitivity of the classes that occur [...], in [0, 1]; NaN without any."""
    return _mean(sensitivity(counts))


def f1(counts: Counts) -> Values:
    """Return the mean F1 of the classes that occur or are answered [...], in [0, 1].

    2 right / (images of the class + answers of the class), by class.
    """
    return _mean(_share(2 * _right(counts), counts.sum(-1) + counts.sum(-2)))


def kappa(counts: Counts) -> Values:
    """Return Cohen's kappa (1960) [...], in [-1, 1]: 0 is chance with these shares of classes.

    (p - e) / (1 - e), p the accuracy and e that of the same answers in random order; NaN where e
    is 1: one class, and no other answer.
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
"""How a person reads them."""


def metric_value(metric: Metric, confusion: Sequence[Sequence[int]]) -> float | None:
    """Return a metric of one confusion matrix [C][C]; None where it cannot be said."""
    return none_if_nan(float(METRICS[metric](np.asarray(confusion, dtype=np.int64))))


def none_if_nan(value: float) -> float | None:
    """Return a number, or None in the place of NaN, as JSON has it."""
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
    said = sensitivity(counts)[counts.sum(-1) >= MIN_CLASS_IMAGES]
    return max(least - float(said.min()), 0.0) if len(said) else 0.0


@dataclass(frozen=True)
class OneVsRest:
    """How well probabilities tell a class from all others; None: it cannot be said.

    images: of the class. auroc, average_precision: in [0, 1]. sensitivity_at: the largest
    sensitivity at which the specificity is what was asked for.
    """

    images: int
    auroc: float | None
    average_precision: float | None
    sensitivity_at: float | None


def one_vs_rest(probabilities: Values, labels: Counts, at: float) -> list[OneVsRest]:
    """Return for each class how well its probability separates it from the rest (scikit-learn).

    probabilities: [n, C]. labels: [n], in [0, C). at: the specificity at which sensitivities are
    read off, in [0, 1]. A class has no numbers where it, or the rest, has fewer than
    `MIN_CLASS_IMAGES` images. Raises RunError where a probability is NaN or infinite.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

    check_finite(probabilities)
    found = []
    for c, scores in enumerate(probabilities.T):
        of = labels == c
        images = int(of.sum())
        if not MIN_CLASS_IMAGES <= images <= len(labels) - MIN_CLASS_IMAGES:
            found.append(OneVsRest(images, None, None, None))
            continue
        wrong, right, _ = roc_curve(of, scores, drop_intermediate=False)
        found.append(
            OneVsRest(
                images,
                float(roc_auc_score(of, scores)),
                float(average_precision_score(of, scores)),
                float(right[wrong <= 1 - at + 1e-12].max()),
            )
        )
    return found


def mean_of_known(values: Sequence[float | None]) -> float | None:
    """Return the mean over the classes of which there is a number; None: there are none."""
    said = [one for one in values if one is not None]
    return sum(said) / len(said) if said else None


def brier(probabilities: Values, labels: Counts) -> float | None:
    """Return scikit-learn's Brier score: of two classes in [0, 1], of more in [0, 2]; 0 is best.

    Raises RunError where an answer is NaN. None without images.
    """
    from sklearn.metrics import brier_score_loss

    check_finite(probabilities)
    if not len(labels):
        return None
    classes = probabilities.shape[1]
    answers = probabilities if classes > 2 else probabilities[:, 1]
    return float(brier_score_loss(labels, answers, labels=list(range(classes))))


def check_finite(probabilities: Values) -> None:
    """Raise RunError where an answer is NaN or infinite: no metric of it says anything."""
    if not np.isfinite(probabilities).all():
        raise RunError("the model answers NaN: use one of another round or site")


def confusion_matrix(probabilities: Values, labels: Counts) -> Counts:
    """Return the images [C, C] by true and by most probable class."""
    return confusion_of_answers(probabilities.argmax(1), labels, probabilities.shape[1])


def confusion_of_answers(said: Counts, labels: Counts, classes: int) -> Counts:
    """Return the images [C, C] by true and by answered class. said, labels: [n], in [0, C)."""
    place = labels * classes + said
    return np.bincount(place, minlength=classes**2).reshape(classes, classes)


def _right(counts: Counts) -> Counts:
    return np.diagonal(counts, axis1=-2, axis2=-1)


def _share(part: NDArray[np.generic], whole: NDArray[np.generic]) -> Values:
    with np.errstate(invalid="ignore", divide="ignore"):
        share: Values = np.true_divide(part, whole)
    return share


def _mean(by_class: Values) -> Values:
    """Return the mean over the classes that have a value; NaN where none has."""
    there = ~np.isnan(by_class)
    return _share(np.where(there, by_class, 0).sum(-1), there.sum(-1))
