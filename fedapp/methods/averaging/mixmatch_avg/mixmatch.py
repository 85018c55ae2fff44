"""MixMatch (Berthelot et al. 2019): guessed labels of averaged views, and MixUp of everything.

Written for n labelled images and m unlabelled ones, A views of each of the latter, C classes.
"""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedapp.learn.objectives import Work, labelled_loss, pairs
from fedapp.learn.prototypes import sharpened
from fedapp.learn.training import Step, View

Mixing = Callable[[int], tuple[Tensor, Tensor]]
"""A number of images -> their partners, a permutation int64 [n], and `shares`, [n]."""


def guessed(logits: Tensor, temperature: float) -> Tensor:
    """Return the sharpened mean of the softmax of A views (Eqs. 6 and 7): [m, C], rows sum to 1.

    logits: [A, m, C], A >= 1. temperature: T > 0; 1: the mean itself.
    """
    return sharpened(torch.softmax(logits, 2).mean(0), temperature)


def mixing(count: int, alpha: float, draws: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Draw whom each of `count` images is mixed with, and its own share (Eqs. 8 and 9).

    The shares are max(l, 1 - l), float32 in [1/2, 1], with l from Beta(alpha, alpha), one for each
    image. alpha: 0 or more; at 0 they are 1.
    """
    partners = torch.from_numpy(draws.permutation(count))
    drawn = draws.beta(alpha, alpha, count) if alpha else np.ones(count)
    return partners, torch.from_numpy(np.maximum(drawn, 1 - drawn).astype(np.float32))


def mixed(values: Tensor, partners: Tensor, shares: Tensor) -> Tensor:
    """Return share_i v_i + (1 - share_i) v_partner(i) (Eqs. 10 and 11), shaped as values [n, ...].

    A share of 1 is no mixing.
    """
    shares = shares.view(-1, *[1] * (values.ndim - 1))
    return shares * values + (1 - shares) * values[partners]


def mixmatch_loss(logits: Tensor, targets: Tensor, labelled: int, weight: float) -> Tensor:
    """Return the mean cross entropy of the first `labelled` + weight * that of squares of the rest.

    logits, targets: [n + A m, C]. Squares are of the softmax's differences from the targets, their
    mean over images and classes (Eqs. 3 to 5). Of no images a part is 0. No gradient flows into the
    targets.
    """
    targets = targets.detach()
    total = labelled_loss(logits[:labelled], targets[:labelled])
    if len(logits) == labelled:
        return total
    apart = torch.softmax(logits[labelled:], 1) - targets[labelled:]
    return total + weight * apart.square().mean()


def mixmatch(
    work: Work, weak: View, views: int, temperature: float, mix: Mixing, weight: float
) -> Iterator[Step]:
    """`mixmatch_loss` on mini-batches of D_s and D_u. Steps are those of `objectives.two_views`.

    weak: makes a view. views: A >= 1 for each image of D_u; its guessed label is that of all of
    them. Labels are guessed with dropout and by batch statistics, as the loss is taken.
    """
    data, model = work.data, work.model
    work.begin(len(data.labels) + views * len(data.unlabelled))

    def loss(x: Tensor, y: Tensor, partners: Tensor, shares: Tensor) -> Tensor:
        known, targets = len(y), F.one_hot(y, data.num_classes).float()
        if len(x) > known:
            # Labelled images go through as well: a batch of one view has no batch statistics.
            with torch.no_grad():
                logits = model(x)[known:]
            guess = guessed(logits.unflatten(0, (views, -1)), temperature)
            targets = torch.cat([targets, guess.repeat(views, 1)])
        logits = model(mixed(x, partners, shares))
        return mixmatch_loss(logits, mixed(targets, partners, shares), known, weight)

    def epoch() -> Iterator[Step]:
        for labelled, unlabelled in pairs(work):
            x_u = data.unlabelled[unlabelled]
            seen = [weak(data.labelled[labelled]), *(weak(x_u) for _ in range(views))]
            x = work.normalise(torch.cat(seen))
            partners, shares = (drawn.to(x.device) for drawn in mix(len(x)))
            yield partial(loss, x, data.labels[labelled], partners, shares)

    yield from work.passes(epoch)
