"""Agreement in FedMatch: who helps whom, and what unlabelled images teach with helpers."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fedapp.core.rng import torch_stream
from fedapp.data.augment import place

PROBE_MEAN = PROBE_DEVIATION = 125.0
"""Of the normal distribution, cut to [0, 255], that the probe's pixels are drawn from."""


def probe(shape: Sequence[int], seed: int) -> Tensor:
    """Return the one random image by whose answers models are compared, uint8 [1, *shape].

    Where places in a bank of views stand for images, shape [1], it is the place of the first image.
    """
    if len(shape) == 1:
        return place(torch.zeros(1, dtype=torch.int64))
    ends = torch.tensor([0.0, 255.0], dtype=torch.float64)
    low, high = torch.special.ndtr((ends - PROBE_MEAN) / PROBE_DEVIATION)
    drawn = torch.rand(
        (1, *shape), generator=torch_stream(seed, "fedmatch-probe"), dtype=torch.float64
    )
    pixels: Tensor = PROBE_MEAN + PROBE_DEVIATION * torch.special.ndtri(low + (high - low) * drawn)
    return pixels.round().clamp(0, 255).to(torch.uint8)


def nearest(site: int, answers: Mapping[int, Tensor], count: int) -> tuple[int, ...]:
    """Return the sites whose answers [C] are nearest to a site's, the nearest first.

    By Euclidean distance, the lower number first where two are equal; the site itself is none of
    them, and one that has given no answer has nobody.
    """
    if site not in answers:
        return ()
    far = {k: float((a - answers[site]).norm()) for k, a in answers.items() if k != site}
    return tuple(sorted(far, key=lambda k: (far[k], k))[:count])


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
