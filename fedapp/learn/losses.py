"""The semi-supervised objective (paper, Eqs. 1, 4, 5), over mini-batches."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def joint_loss(network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return `soft_target_loss` of the network's logits.

    inputs: normalised, [n, ...]. targets: [n, C].
    """
    return soft_target_loss(network(inputs), targets)


def cross_entropy(network: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross entropy. inputs: normalised, [n, ...]; labels: int64 [n]."""
    return F.cross_entropy(network(inputs), labels)


def finding_loss(network: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean binary cross entropy over all findings that were annotated; 0 if none was.

    labels: int64 [n, F]: 1 present, 0 absent, negative: not annotated.
    """
    return findings_bce(network(inputs), labels)


def findings_bce(logits: Tensor, targets: Tensor, worth: Tensor | None = None) -> Tensor:
    """Return the mean of BCE(sigmoid(logits), target) over all targets >= 0; 0 if there are none.

    logits, targets: [n, F], n >= 0; a negative target is missing.
    worth: [F], factors of the findings' losses; None: all 1.
    """
    known = targets >= 0
    each = F.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none")
    each = each if worth is None else worth * each
    return torch.where(known, each, 0).sum() / known.sum().clamp_min(1)


def soft_target_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over samples of KL(target || f(x)), for one-hot and soft targets alike.

    logits, targets: [n, C], n >= 1; rows of targets sum to 1. For a one-hot target the KL
        divergence is the cross entropy. So over a mini-batch drawn evenly from D_s and D_u together
        this is Eq. 1, with the batch's own share of labelled images in place of mu; the expectation
        of that share is mu_k. One pass over the data is enough, without a second loader.
    """
    return F.kl_div(F.log_softmax(logits, dim=1), targets, reduction="batchmean")
