"""Evaluation of a model on one site, as sums that can be added over sites."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from fedapp.models.resnet9 import ResNet9
from fedapp.protocol import Evaluation
from fedapp.uncertainty import SCORING_BATCH, Normalise, features_of

BINS = 15
"""Confidence bins of the calibration sums."""


@torch.inference_mode()
def predict(model: ResNet9, images: Tensor, normalise: Normalise) -> Tensor:
    """Return softmax probabilities without dropout, float32 [n, C], on the CPU."""
    model.eval()
    out = []
    for batch in images.split(SCORING_BATCH):
        out.append(torch.softmax(model.tail(features_of(model, batch, normalise)), dim=1))
    return torch.cat(out).cpu()  # the only sync


def evaluation(probabilities: Tensor, labels: Tensor) -> Evaluation:
    """Sum up predictions: probabilities [n, C], labels int64 [n], both on the CPU; n >= 0."""
    classes = probabilities.shape[1]
    confidence, predicted = probabilities.max(1) if len(labels) else (torch.empty(0), labels)
    confusion = torch.bincount(labels * classes + predicted, minlength=classes * classes)
    bins = (confidence * BINS).ceil().long().sub_(1).clamp_(0, BINS - 1)
    correct = (predicted == labels).double()
    return Evaluation(
        confusion=tuple(map(tuple, confusion.reshape(classes, classes).tolist())),
        bin_count=tuple(torch.bincount(bins, minlength=BINS).tolist()),
        bin_correct=tuple(torch.bincount(bins, correct, BINS).long().tolist()),
        bin_confidence=tuple(torch.bincount(bins, confidence.double(), BINS).tolist()),
    )


def calibration_error(evaluations: Iterable[Evaluation]) -> float | None:
    """Return the expected calibration error (Guo et al. 2017), in [0, 1]; None without samples.

    sum_b |correct_b - confidence_b| / n, where the bins b of all evaluations were added first:
    every sample counts the same, whichever site it lies at.
    """
    listed = list(evaluations)
    samples = sum(sum(one.bin_count) for one in listed)
    if not samples:
        return None
    correct = map(sum, zip(*(one.bin_correct for one in listed), strict=True))
    confidence = map(math.fsum, zip(*(one.bin_confidence for one in listed), strict=True))
    return sum(abs(a - b) for a, b in zip(correct, confidence, strict=True)) / samples


def wilson(correct: float, total: float, z: float = 1.96) -> tuple[float, float]:
    """Return Wilson's interval of a share, in [0, 1]; (0, 1) where nothing was counted.

    z: standard deviations each way, 1.96 for 95 %.
    """
    if total <= 0:
        return 0.0, 1.0
    share, spread = correct / total, z * z / total
    middle = (share + spread / 2) / (1 + spread)
    half = math.sqrt(share * (1 - share) * spread + spread * spread / 4) / (1 + spread)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def worst_decile(accuracies: Sequence[float]) -> float:
    """Mean accuracy of the worst tenth of the sites (at least one site); needs one accuracy."""
    count = max(len(accuracies) // 10, 1)
    return sum(sorted(accuracies)[:count]) / count
