"""The semi-supervised objective (paper, Eqs. 1, 4, 5)."""

import torch.nn.functional as F
from torch import Tensor


def semi_supervised_loss(
    logits_s: Tensor, labels: Tensor, logits_u: Tensor, targets: Tensor, mu: float
) -> Tensor:
    """mu CE(D_s) + (1 - mu) KL(y_hat || f(x)) as means over samples; a part without samples is 0.

    logits_s: [n_s, C], labels: int64 [n_s]; logits_u: [n_u, C], targets: [n_u, C], rows sum to 1.
    """
    loss = logits_s.sum() * 0.0 + logits_u.sum() * 0.0
    if len(labels):
        loss = loss + mu * F.cross_entropy(logits_s, labels)
    if len(targets):
        log_f = F.log_softmax(logits_u, dim=1)
        loss = loss + (1 - mu) * F.kl_div(log_f, targets, reduction="batchmean")
    return loss


def soft_target_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over samples of KL(target || f(x)), for one-hot and soft targets alike.

    logits, targets: [n, C], n >= 1, target rows sum to 1. For a one-hot target KL is the cross
    entropy, so over a mini-batch drawn evenly from D_s and D_u together this is Eq. 1 with mu equal
    to the batch's own labelled share, whose expectation is mu_k: one pass, no second loader.
    """
    return F.kl_div(F.log_softmax(logits, dim=1), targets, reduction="batchmean")
