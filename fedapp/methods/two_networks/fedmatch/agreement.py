"""What unlabelled images teach in FedMatch: to agree with helpers, and pseudo-labels by vote."""

import torch
import torch.nn.functional as F
from torch import Tensor


def vote(own: Tensor, helpers: Tensor) -> Tensor:
    """Return the class that most of a site's own model and its helpers name, int64 [n].

    own: probabilities [n, C]. helpers: [H, n, C], H >= 0. The lowest class of several.
    """
    every = torch.cat([own[None], helpers]).argmax(2)
    return F.one_hot(every, own.shape[1]).sum(0).argmax(1)


def unlabelled_loss(
    plain: Tensor,
    strong: Tensor,
    helpers: Tensor,
    confidence: float,
    helper_weight: float,
    unlabelled_weight: float,
) -> Tensor:
    """Return lambda_i mean_j KL(p_j || p) + lambda_a CE(strong, vote), the mean over sure images.

    plain, strong: logits [n, C] of the images as they are and of their strong views; p is the
    softmax of the former. helpers: their p_j [H, n, C]. Sure are images where p is at least
    `confidence` for a class; where none is, the loss is 0. No gradient flows by way of the vote.
    """
    own = torch.softmax(plain.detach(), 1)
    sure = own.max(1).values >= confidence
    each = unlabelled_weight * F.cross_entropy(strong, vote(own, helpers), reduction="none")
    if len(helpers):
        log_p = F.log_softmax(plain, 1).expand_as(helpers)
        apart = F.kl_div(log_p, helpers, reduction="none").sum(2).mean(0)
        each = each + helper_weight * apart
    return (each * sure).sum() / sure.sum().clamp(min=1)
