"""What a site minimises on its own images, mini-batch by mini-batch.

An objective is a stream of steps; a step computes the loss of one mini-batch under the network that
it is given, as often as it is called. Methods compose these with their own way to descend.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedapp.data.sites import SiteData
from fedapp.learn.class_imbalance import (
    ADJUSTED,
    BALANCED,
    NO_ADJUSTMENT,
    PLAIN,
    AdjustedCrossEntropy,
    LogitAdjustment,
    Uneven,
    balanced_indices,
    class_mix_as_sampled,
)
from fedapp.learn.losses import cross_entropy, finding_loss
from fedapp.learn.networks.base import Network
from fedapp.learn.steps import Step, View, batches, paired, repeated
from fedapp.learn.training import freeze_batch_norm

LabelledLoss = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""A network, normalised images [n, ...] and their labels [n], n >= 1 -> a scalar."""
UnlabelledLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Normalised weak views, logits of the weak and of the strong views [n, C], n >= 0 -> a scalar."""


@dataclass(frozen=True)
class LocalTraining:
    """A site's images and how to go through them.

    model: the network that learns; steps are of any network, its mode alone is set (`begin`).
    normalise: uint8 images -> float images. size: B, images a step. shuffle: draws the order.
    steps: mini-batches in place of `epochs` passes; None: the passes. view: of what is learned from
    its label alone; FixMatch and the like have views of their own. labelled_repeat: how often each
    labelled image stands among those that a pass goes through. uneven: how it learns from classes
    of which it has few images (`learn.class_imbalance`).
    """

    model: Network
    data: SiteData
    normalise: Callable[[Tensor], Tensor]
    size: int
    epochs: int
    shuffle: torch.Generator
    steps: int | None = None
    view: View = field(default=lambda images: images)
    labelled_repeat: int = 1
    uneven: Uneven = PLAIN

    @property
    def shift(self) -> LogitAdjustment:
        """What is added to the logits of labelled images in training."""
        if self.uneven != ADJUSTED or not len(self.data.labels):
            return NO_ADJUSTMENT
        return LogitAdjustment(tuple(self.mix.log().tolist()))

    @property
    def mix(self) -> Tensor:
        """The class mix of D_s as it is drawn: float64 [C], > 0, sums to 1."""
        return class_mix_as_sampled(self.data.labels, self.data.num_classes, self.uneven)

    def drawn(self) -> Tensor:
        """Return which of D_s a pass goes through, in no order: int64 [labelled_repeat n]."""
        known = len(self.data.labels)
        if self.uneven == BALANCED:
            return balanced_indices(self.data.labels, known * self.labelled_repeat, self.shuffle)
        return torch.arange(known).repeat(self.labelled_repeat)

    def passes(self, epoch: Callable[[], Iterator[Step]]) -> Iterator[Step]:
        """Yield the mini-batches of as many passes as there are to be."""
        return repeated(epoch, self.epochs, self.steps)

    def begin(self, images: int) -> None:
        """Put the network in training mode; with a single image, batch norm in eval mode.

        It cannot estimate a variance from one value (see `steps.batches`).
        """
        self.model.train()
        if images == 1:
            freeze_batch_norm(self.model)


def supervised(work: LocalTraining, loss: LabelledLoss = cross_entropy) -> Iterator[Step]:
    """Cross entropy on D_s, or another loss of it; no step where the site has no labels.

    Of findings it is `finding_loss` in the place of cross entropy.
    """
    images, labels = work.data.labelled, work.data.labels
    mean = loss is cross_entropy  # of others nobody knows what they depend on
    if work.data.finds:
        loss = finding_loss
    elif mean and (shift := work.shift).values:
        loss = AdjustedCrossEntropy(shift)
    work.begin(len(labels))

    def epoch() -> Iterator[Step]:
        drawn = work.drawn()
        order = drawn[torch.randperm(len(drawn), generator=work.shuffle)]
        for batch in batches(order.to(images.device), work.size):
            inputs = work.normalise(work.view(images[batch])), labels[batch]
            yield Step(loss, inputs, mean)

    yield from work.passes(epoch)


def fixmatch(
    work: LocalTraining, weak: View, strong: View, confidence: float, weight: float
) -> Iterator[Step]:
    """FixMatch (Sohn et al. 2020, Eqs. 3 and 4): CE(D_s) + weight * CE(strong, label of the weak).

    A pseudo-label counts where the weak view's top probability is at least `confidence`; its
    gradient is stopped. Steps are those of `two_views`.
    """
    return two_views(work, weak, strong, Consistency(confidence), weight)


@dataclass(frozen=True)
class Consistency:
    """FixMatch's `UnlabelledLoss`; equal where the confidence is."""

    confidence: float

    def __call__(self, _: Tensor, weak: Tensor, strong: Tensor) -> Tensor:
        """Return `consistency` of the views."""
        return consistency(weak, strong, self.confidence)


@dataclass(frozen=True)
class TwoViewsLoss:
    """What a step of `two_views` minimises; equal where its parts are."""

    unlabelled: UnlabelledLoss
    weight: float
    shift: LogitAdjustment = NO_ADJUSTMENT

    def __call__(self, network: nn.Module, views: Tensor, y: Tensor) -> Tensor:
        """Normalised views: weak ones of D_s, with labels y, then weak and strong ones of D_u."""
        logits, count = network(views), len(y)
        (seen, _), (sure, other) = views[count:].chunk(2), logits[count:].chunk(2)
        loss = labelled_loss(self.shift(logits[:count]), y)
        return loss + self.weight * self.unlabelled(seen, sure, other)


def two_views(
    work: LocalTraining, weak: View, strong: View, unlabelled_loss: UnlabelledLoss, weight: float
) -> Iterator[Step]:
    """CE(D_s, weak views) + weight * a loss of the weak and the strong views of D_u.

    Each step holds min(B, |D_s|) labelled and min(B, |D_u|) unlabelled images, seen in one forward
    pass; an epoch passes once over the larger part. Where one part is empty, the other is all there
    is.
    """
    data, loss = work.data, TwoViewsLoss(unlabelled_loss, weight, work.shift)
    work.begin(len(data.labels) + 2 * len(data.unlabelled))

    def epoch() -> Iterator[Step]:
        for labelled, unlabelled in index_pairs(work):
            x_s, y = weak(data.labelled[labelled]), data.labels[labelled]
            x_u = data.unlabelled[unlabelled]
            views = work.normalise(torch.cat([x_s, weak(x_u), strong(x_u)]))
            yield Step(loss, (views, y))

    yield from work.passes(epoch)


def labelled_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy; 0 without labels."""
    return F.cross_entropy(logits, labels) if len(labels) else logits.sum()


def consistency(weak: Tensor, strong: Tensor, confidence: float) -> Tensor:
    """Mean over all samples of 1[max q >= confidence] CE(strong, arg max q), q = softmax(weak).

    weak, strong: logits [n, C]; 0 without samples. No gradient flows into `weak`.
    """
    if not len(weak):
        return weak.sum()
    top, label = torch.softmax(weak.detach(), dim=1).max(1)
    return selected_cross_entropy(strong, label, top >= confidence)


def selected_cross_entropy(logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    """Mean over all samples of the cross entropy of those that count; 0 without samples.

    logits: [n, C]. labels: int64 [n]. counts: bool [n].
    """
    if not len(logits):
        return logits.sum()
    return (F.cross_entropy(logits, labels, reduction="none") * counts).mean()


def proximal_penalty(
    weights: Sequence[Tensor], anchors: Sequence[Tensor], strength: float
) -> Tensor:
    """Return strength / 2 sum_i ||w_i - a_i||^2, a scalar: its gradient is strength (w - a)."""
    return strength / 2 * squared_distance(weights, anchors)


def squared_distance(weights: Sequence[Tensor], anchors: Sequence[Tensor]) -> Tensor:
    """Return sum_i ||w_i - a_i||^2, a scalar."""
    terms = [(w - a).square().sum() for w, a in zip(weights, anchors, strict=True)]
    return torch.stack(terms).sum()


def detached_copies(weights: Iterable[Tensor]) -> list[Tensor]:
    """Return the weights as they are now, without a graph."""
    return [w.detach().clone() for w in weights]


def index_pairs(work: LocalTraining) -> Iterator[tuple[Tensor, Tensor]]:
    """One epoch of pairs of indices into D_s and D_u, either of them empty where its part is."""
    drawn, other = work.drawn().to(work.data.labels.device), len(work.data.unlabelled)
    count = len(drawn)
    device, none = work.data.labels.device, torch.empty(0, dtype=torch.int64)
    if count and other:
        for labelled, unlabelled in paired(count, count + other, work.size, work.shuffle, device):
            yield drawn[labelled], unlabelled - count
        return
    order = torch.randperm(count + other, generator=work.shuffle).to(device)
    for batch in batches(order, work.size):
        yield (drawn[batch], none.to(device)) if count else (none.to(device), batch)
