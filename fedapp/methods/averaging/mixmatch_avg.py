"""MixMatch (Berthelot et al. 2019) at every site, averaged by FedAvg.

A site guesses each unlabelled image's label, as the sharpened mean of its answers to some weak
views. Then it mixes all its images, and their labels, in pairs (MixUp), and minimises

    CE(mixed labelled images) + lambda_u mean (softmax - mixed guess)^2   (`mixmatch_loss`)

lambda_u rises linearly over the first rounds: the paper's rises over its first 16,000 steps. The
warm-up is supervised, as of all methods. FlexProtoFSSL's paper has it in its table of costs.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedapp.core.rng import numpy_stream
from fedapp.core.settings import CLOSED, Count, Positive
from fedapp.data.augment import weak
from fedapp.data.sites import SiteData
from fedapp.learn.objectives import LocalTraining, index_pairs, labelled_loss, supervised
from fedapp.learn.prototypes import sharpened
from fedapp.learn.steps import Step, View
from fedapp.methods.averaging.base import WARM_UP, Averaging, work_of
from fedapp.methods.base import SiteContext
from fedapp.protocol.messages import Task

Mixing = Callable[[int], tuple[Tensor, Tensor]]
"""A number of images -> their partners, a permutation int64 [n], and `shares`, [n]."""


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class MixMatchAvg(Averaging):
    """Fields are MixMatch's hyper-parameters, defaults the paper's."""

    name: ClassVar[str] = "mixmatch_avg"

    views: Count = 2
    """K, weak views of an unlabelled image that a guess is of."""
    temperature: Positive = 0.5
    """T, of the guess; below 1 it becomes surer."""
    mixup: Annotated[float, Field(ge=0)] = 0.75
    """alpha of Beta(alpha, alpha), of which the shares in a mixed image are drawn; 0: no MixUp."""
    unlabelled_weight: Annotated[float, Field(ge=0)] = 75.0
    """lambda_u, what it rises to."""
    ramp_rounds: Count = 50
    """Rounds until lambda_u has risen."""

    unsupported: ClassVar = {
        "split.labels": "",  # sites learn from their guesses
        "method.name": "learns from random views of images",
    }

    def images_per_step(self, batch_size: int, data: SiteData) -> int:
        """A labelled image and all views of an unlabelled one for each of a batch."""
        return (1 + self.views) * batch_size

    def weight_in(self, number: int) -> float:
        """Return lambda_u in a round, 1 or later."""
        return self.unlabelled_weight * min(number / self.ramp_rounds, 1)

    def steps(self, task: Task, site: SiteContext) -> Iterator[Step]:
        """Cross entropy on D_s or, after the warm-up, MixMatch."""
        work, draws = work_of(task, site), site.stream("augment", task)
        if task.action == WARM_UP:
            return supervised(work)
        mixes = numpy_stream(site.seed, "mixup", task.when, site.data.site)
        return mixmatch(
            work,
            lambda images: weak(images, site.flip, draws),
            self.views,
            self.temperature,
            partial(mixing, alpha=self.mixup, draws=mixes),
            self.weight_in(task.round),
        )


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
    work: LocalTraining, weak: View, views: int, temperature: float, mix: Mixing, weight: float
) -> Iterator[Step]:
    """`mixmatch_loss` on mini-batches of D_s and D_u. Steps are those of `objectives.two_views`.

    weak: makes a view. views: A >= 1 for each image of D_u; its guessed label is that of all of
    them. Labels are guessed with dropout and by batch statistics, as the loss is taken.
    """
    data, shift = work.data, work.shift
    work.begin(len(data.labels) + views * len(data.unlabelled))

    def loss(network: nn.Module, x: Tensor, y: Tensor, partners: Tensor, shares: Tensor) -> Tensor:
        known, targets = len(y), F.one_hot(y, data.num_classes).float()
        if len(x) > known:
            # Labelled images go through as well: a batch of one view has no batch statistics.
            with torch.no_grad():
                logits = network(x)[known:]
            guess = guessed(logits.unflatten(0, (views, -1)), temperature)
            targets = torch.cat([targets, guess.repeat(views, 1)])
        logits = network(mixed(x, partners, shares))
        if shift.values:
            logits = torch.cat([shift(logits[:known]), logits[known:]])
        return mixmatch_loss(logits, mixed(targets, partners, shares), known, weight)

    def epoch() -> Iterator[Step]:
        for labelled, unlabelled in index_pairs(work):
            x_u = data.unlabelled[unlabelled]
            seen = [weak(data.labelled[labelled]), *(weak(x_u) for _ in range(views))]
            x = work.normalise(torch.cat(seen))
            partners, shares = (drawn.to(x.device) for drawn in mix(len(x)))
            yield Step(loss, (x, data.labels[labelled], partners, shares))

    yield from work.passes(epoch)


METHOD = MixMatchAvg
