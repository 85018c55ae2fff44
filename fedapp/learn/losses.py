"""The semi-supervised objective (paper, Eqs. 1, 4, 5), over mini-batches."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def joint_loss(network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """`soft_target_loss` of a network's answers to normalised inputs [n, ...]; targets [n, C]."""
    return soft_target_loss(network(inputs), targets)


def cross_entropy(network: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Of a network's answers to normalised inputs [n, ...]; labels int64 [n]."""
    return F.cross_entropy(network(inputs), labels)


def finding_loss(network: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Mean over the findings that were read of BCE(sigmoid(f(x)), y); 0 where none was.

    labels: int64 [n, F], 1 there, 0 not, below 0 not read.
    """
    return findings_bce(network(inputs), labels)


def findings_bce(logits: Tensor, targets: Tensor, worth: Tensor | None = None) -> Tensor:
    """Mean over the targets of 0 and more of BCE(sigmoid(logits), target); 0 where there is none.

    logits, targets: [n, F], n >= 0. worth: [F], what each finding's losses are times.
    """
    known = targets >= 0
    each = F.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none")
    each = each if worth is None else worth * each
    return torch.where(known, each, 0).sum() / known.sum().clamp_min(1)


def soft_target_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over samples of KL(target || f(x)), for one-hot and soft targets alike.

    logits, targets: [n, C], n >= 1, target rows sum to 1. For a one-hot target KL is the cross
    entropy. So over a mini-batch drawn evenly from D_s and D_u together this is Eq. 1 with the
    batch's own share of labels for mu; its expectation is mu_k. One pass, no second loader.
    """
    return F.kl_div(F.log_softmax(logits, dim=1), targets, reduction="batchmean")
