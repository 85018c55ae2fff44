"""The semi-supervised objective (paper, Eqs. 1, 4, 5), over mini-batches."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from fedapp.learn.networks.base import Network


@dataclass(frozen=True)
class JointLoss:
    """`soft_target_loss` of a network's answers; equal where the network is the same one."""

    model: Network

    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Normalised inputs [n, ...], targets [n, C] -> a scalar."""
        return soft_target_loss(self.model(inputs), targets)


@dataclass(frozen=True)
class CrossEntropy:
    """Cross entropy of a network's answers; equal where the network is the same one."""

    model: Network

    def __call__(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Normalised inputs [n, ...], labels int64 [n] -> a scalar."""
        return F.cross_entropy(self.model(inputs), labels)


def soft_target_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over samples of KL(target || f(x)), for one-hot and soft targets alike.

    logits, targets: [n, C], n >= 1, target rows sum to 1. For a one-hot target KL is the cross
    entropy. So over a mini-batch drawn evenly from D_s and D_u together this is Eq. 1 with the
    batch's own share of labels for mu; its expectation is mu_k. One pass, no second loader.
    """
    return F.kl_div(F.log_softmax(logits, dim=1), targets, reduction="batchmean")
