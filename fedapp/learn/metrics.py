"""Sums of a model's evaluation at one site, which can be added, and counts of pseudo-labels."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from fedapp.data.sites import Audit
from fedapp.evaluation.classification_metrics import confusion_of_answers
from fedapp.evaluation.findings import flatten_findings
from fedapp.learn.networks.base import Network
from fedapp.learn.uncertainty import SCORING_BATCH, Normalise, entropy, features_of, scoring_batches
from fedapp.protocol.messages import Evaluation, PseudoLabels

CALIBRATION_BINS = 15
"""Bins of confidence in the sums from which the calibration error is computed."""

LABEL_GROUPS = ("mu < 0.1", "0.1 <= mu <= 0.5", "mu > 0.5")
"""Groups of sites by mu, the share of their training images that are labelled."""
SHARES_OF_LABELS = ("under 10 %", "10 to 50 %", "over 50 %")
"""The same groups in plain words."""


@torch.inference_mode()
def predict(model: Network, images: Tensor, normalise: Normalise) -> Tensor:
    """Return the probabilities (`Network.answer`) without dropout, float32 [n, C], on the CPU."""
    [out] = predict_each(model, [images], normalise)
    return out


@torch.inference_mode()
def predict_each(model: Network, sets: Sequence[Tensor], normalise: Normalise) -> list[Tensor]:
    """Return what `predict` returns for each set of images.

    Small sets go through the trunk together, because a pass over two images takes nearly as long as
    one over ten. The tail sees each set alone: its matrix products have other last bits for other
    numbers of rows. Each set is also copied to the start of its own memory, because on some CPUs
    the last bits depend on the alignment of the memory.
    """
    model.eval()
    sizes = [len(images) for images in sets]
    if len(sets) > 1 and sum(sizes) <= SCORING_BATCH:
        every = features_of(model, torch.cat(list(sets)), normalise)
        found = [[one.clone() for one in part.split(sizes)] for part in every]
        answers = [model.answer(model.tail(features)) for features in zip(*found, strict=True)]
    else:
        answers = [_predicted(model, images, normalise) for images in sets]
    return list(torch.cat(answers).cpu().split(sizes)) if answers else []  # the only sync


def _predicted(model: Network, images: Tensor, normalise: Normalise) -> Tensor:
    out = []
    for batch in scoring_batches(images):
        out.append(model.answer(model.tail(features_of(model, batch, normalise))))
    return torch.cat(out)


def evaluation(probabilities: Tensor, labels: Tensor) -> Evaluation:
    """Return the sums of predictions. probabilities: [n, C]; labels: int64 [n], n >= 0; on the CPU.

    For findings, labels are [n, F], and each annotated finding is one sample of 2 F classes
    (`evaluation.findings`).
    """
    # By NumPy: for the few images of a site, the overhead of torch's calls would dominate.
    answers, truth, classes = probabilities.numpy(), labels.numpy(), probabilities.shape[1]
    if labels.ndim == 2:
        answers, truth, _, of = flatten_findings(answers, truth)
    predicted, confidence = answers.argmax(1), answers.max(1)
    if labels.ndim == 2:
        predicted, truth, classes = predicted + 2 * of, truth + 2 * of, 2 * classes
    confusion = confusion_of_answers(predicted, truth, classes)
    bins = np.clip(
        np.ceil(confidence * np.float32(CALIBRATION_BINS)).astype(np.int64) - 1,
        0,
        CALIBRATION_BINS - 1,
    )
    right = np.bincount(bins[predicted == truth], minlength=CALIBRATION_BINS)
    return Evaluation(
        confusion=tuple(map(tuple, confusion.tolist())),
        bin_count=tuple(np.bincount(bins, minlength=CALIBRATION_BINS).tolist()),
        bin_correct=tuple(right.tolist()),
        bin_confidence=tuple(np.bincount(bins, confidence, CALIBRATION_BINS).tolist()),
    )


def calibration_error(evaluations: Iterable[Evaluation]) -> float | None:
    """Return the expected calibration error (Guo et al. 2017), in [0, 1]; None without samples.

    It is sum_b |correct_b - confidence_b| / n. The bins b of all evaluations are added first, so
    every sample counts the same, whichever site it lies at.
    """
    listed = list(evaluations)
    samples = sum(sum(one.bin_count) for one in listed)
    if not samples:
        return None
    correct = map(sum, zip(*(one.bin_correct for one in listed), strict=True))
    confidence = map(math.fsum, zip(*(one.bin_confidence for one in listed), strict=True))
    return sum(abs(a - b) for a, b in zip(correct, confidence, strict=True)) / samples


def worst_decile(accuracies: Sequence[float]) -> float:
    """Return the mean accuracy of the worst tenth of the sites, at least of one site."""
    count = max(len(accuracies) // 10, 1)
    return sum(sorted(accuracies)[:count]) / count


def label_group(mu: float) -> int:
    """Return the index in `LABEL_GROUPS` of a site whose share of labelled images is mu."""
    return 0 if mu < 0.1 else 1 if mu <= 0.5 else 2


UNCERTAINTY_BINS = 10
"""Bins of normalised entropy, [i, i + 1) / 10; the last one also contains 1."""


def count_pseudo_labels(
    soft: Tensor, audit: Audit | None, of: Tensor | None = None
) -> PseudoLabels:
    """Count pseudo-labels by class and by uncertainty, and, in a simulation, those that are wrong.

    soft: [m, C], m >= 0, C >= 1, rows sum to 1; the pseudo-label is the arg max.
    audit: the withheld labels, in a simulation; None: the number of wrong ones is unknown.
    of: int64 [m], the indices of the withheld labels that belong to `soft`; None: all, in order.
    """
    soft = soft.cpu()
    classes, label = soft.shape[1], soft.argmax(1)
    bins = uncertainty_bins(soft)
    place = torch.arange(len(soft)) if of is None else of.cpu()

    def wrong(groups: Tensor, number: int) -> tuple[int, ...]:
        if audit is None or not audit.complete:
            return ()
        members = [groups == group for group in range(number)]
        return tuple(audit.pseudo_label_errors(label[m], place[m])[0] for m in members)

    return PseudoLabels(
        by_class=tuple(torch.bincount(label, minlength=classes).tolist()),
        by_uncertainty=tuple(torch.bincount(bins, minlength=UNCERTAINTY_BINS).tolist()),
        wrong_by_class=wrong(label, classes),
        wrong_by_uncertainty=wrong(bins, UNCERTAINTY_BINS),
    )


def uncertainty_bins(soft: Tensor) -> Tensor:
    """Return the bin of each row's normalised entropy H / ln C, int64 [m]; 0 for one class."""
    most = math.log(soft.shape[1])
    share = entropy(soft.double()) / most if most else torch.zeros(len(soft))
    return (share * UNCERTAINTY_BINS).long().clamp_(0, UNCERTAINTY_BINS - 1)
