"""What a site minimises on its own images, mini-batch by mini-batch.

An objective is a stream of steps; a step computes the loss of one mini-batch under the model as it
is at that moment, as often as it is called. Methods compose these with their own way to descend.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from fedapp.data.sites import SiteData
from fedapp.learn.graphs import BatchStep
from fedapp.learn.losses import CrossEntropy, soft_target_loss
from fedapp.learn.networks.base import Network
from fedapp.learn.training import Step, View, batches, freeze_batch_norm, paired, repeated


@dataclass(frozen=True)
class Work:
    """A site's images and how to go through them.

    normalise: uint8 images -> float images. size: B, images a step. shuffle: draws the order.
    steps: mini-batches in place of `epochs` passes; None: the passes. view: of what is learned from
    its label alone; FixMatch and the like have views of their own. labelled_repeat: how often each
    labelled image stands among those that a pass goes through.
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

    def passes(self, epoch: Callable[[], Iterator[Step]]) -> Iterator[Step]:
        """Yield the mini-batches of as many passes as there are to be."""
        return repeated(epoch, self.epochs, self.steps)

    def begin(self, images: int) -> None:
        """Put the network in training mode; with a single image, batch norm in eval mode.

        It cannot estimate a variance from one value (see `training.batches`).
        """
        self.model.train()
        if images == 1:
            freeze_batch_norm(self.model)


def supervised(
    work: Work, loss_of: Callable[[Tensor, Tensor], Tensor] | None = None
) -> Iterator[Step]:
    """Cross entropy on D_s; no step where the site has no labels.

    loss_of: what takes its place, of normalised images and their labels.
    """
    images, labels = work.data.labelled, work.data.labels
    cross_entropy = CrossEntropy(work.model)
    work.begin(len(labels))

    def epoch() -> Iterator[Step]:
        count = len(labels) * work.labelled_repeat
        order = torch.randperm(count, generator=work.shuffle) % max(len(labels), 1)
        for batch in batches(order.to(images.device), work.size):
            inputs = work.normalise(work.view(images[batch])), labels[batch]
            if loss_of is None:
                yield BatchStep(cross_entropy, inputs)
            else:
                yield partial(loss_of, *inputs)

    yield from work.passes(epoch)


def fixmatch(
    work: Work, weak: View, strong: View, confidence: float, weight: float
) -> Iterator[Step]:
    """FixMatch (Sohn et al. 2020, Eqs. 3 and 4): CE(D_s) + weight * CE(strong, label of the weak).

    A pseudo-label counts where the weak view's top probability is at least `confidence`; its
    gradient is stopped. Steps are those of `two_views`.
    """
    return two_views(work, weak, strong, Consistency(confidence), weight)


UnlabelledLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Normalised weak views, logits of the weak and of the strong views [n, C], n >= 0 -> a scalar."""


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

    model: Network
    unlabelled: UnlabelledLoss
    weight: float

    def __call__(self, views: Tensor, y: Tensor) -> Tensor:
        """Normalised views: weak ones of D_s, with labels y, then weak and strong ones of D_u."""
        logits, count = self.model(views), len(y)
        (seen, _), (sure, other) = views[count:].chunk(2), logits[count:].chunk(2)
        loss = labelled_loss(logits[:count], y)
        return loss + self.weight * self.unlabelled(seen, sure, other)


@dataclass(frozen=True)
class TaughtLoss:
    """What a step of `taught` minimises; equal where network and weight are."""

    model: Network
    weight: float

    def __call__(self, views: Tensor, y: Tensor, y_u: Tensor, counts: Tensor) -> Tensor:
        """Normalised views: weak ones of D_s, with labels y, then strong ones of D_u."""
        logits, count = self.model(views), len(y)
        loss = labelled_loss(logits[:count], y)
        return loss + self.weight * counted_loss(logits[count:], y_u, counts)


@dataclass(frozen=True)
class CorrectedLoss:
    """What a step of `corrected` minimises; equal where the network is the same one."""

    model: Network

    def __call__(
        self, views: Tensor, targets: Tensor, pseudo: Tensor, shift: Tensor, worth: Tensor
    ) -> Tensor:
        """Normalised views: of D_s, with targets [n, C], then of D_u, with pseudo-labels [m, C].

        shift: [C], added to the logits. worth: a scalar.
        """
        logits, known = self.model(views) + shift, len(targets)
        total: Tensor = logits.new_zeros(())
        if known:
            total = total + soft_target_loss(logits[:known], targets)
        if len(pseudo):
            total = total + worth * soft_target_loss(logits[known:], pseudo)
        return total


def two_views(
    work: Work, weak: View, strong: View, unlabelled_loss: UnlabelledLoss, weight: float
) -> Iterator[Step]:
    """CE(D_s, weak views) + weight * a loss of the weak and the strong views of D_u.

    Each step holds min(B, |D_s|) labelled and min(B, |D_u|) unlabelled images, seen in one forward
    pass; an epoch passes once over the larger part. Where one part is empty, the other is all there
    is.
    """
    data, loss = work.data, TwoViewsLoss(work.model, unlabelled_loss, weight)
    recordable = isinstance(unlabelled_loss, Consistency)  # of others nobody knows when equal
    work.begin(len(data.labels) + 2 * len(data.unlabelled))

    def epoch() -> Iterator[Step]:
        for labelled, unlabelled in pairs(work):
            x_s, y = weak(data.labelled[labelled]), data.labels[labelled]
            x_u = data.unlabelled[unlabelled]
            views = work.normalise(torch.cat([x_s, weak(x_u), strong(x_u)]))

            if recordable:
                yield BatchStep(loss, (views, y))
            else:
                yield partial(loss, views, y)

    yield from work.passes(epoch)


def taught(
    work: Work, weak: View, strong: View, labels: Tensor, sure: Tensor, weight: float
) -> Iterator[Step]:
    """CE(D_s, weak views) + weight * mean over D_u of sure_i CE(strong view of i, labels_i).

    labels: int64 [n_u], fixed pseudo-labels. sure: bool [n_u], those that count. Steps and epochs
    are those of `two_views`, without the weak views of D_u.
    """
    data, loss = work.data, TaughtLoss(work.model, weight)
    work.begin(len(data.labels) + len(data.unlabelled))

    def epoch() -> Iterator[Step]:
        for labelled, unlabelled in pairs(work):
            x_s, y = weak(data.labelled[labelled]), data.labels[labelled]
            views = work.normalise(torch.cat([x_s, strong(data.unlabelled[unlabelled])]))
            yield BatchStep(loss, (views, y, labels[unlabelled], sure[unlabelled]))

    yield from work.passes(epoch)


def corrected(work: Work, kept: Tensor, soft: Tensor, worth: float, mix: Tensor) -> Iterator[Step]:
    """CE(D_s) + worth * CE(D_u, soft pseudo-labels), the logits corrected by the class mix.

    kept: int64 [m], which of D_u have a pseudo-label. soft: float32 [m, C], rows sum to 1. worth:
    of one, in labels. mix: pi [C], > 0; ln pi is added to the logits (`learn.priors`).

    Each step holds labelled images, whose mean loss counts 1, and as many with pseudo-labels, whose
    mean loss counts what they are worth: many pseudo-labels do not drown few labels.
    """
    data, device, known = work.data, work.data.labels.device, len(work.data.labels)
    images = torch.cat([data.labelled, data.unlabelled[kept.to(device)]])
    labels = F.one_hot(data.labels, data.num_classes).float()
    targets = torch.cat([labels, soft.to(device)])
    shift, scale = mix.log().to(targets), torch.tensor(worth).to(targets)
    loss = CorrectedLoss(work.model)
    work.begin(len(images))

    def batched() -> Iterator[tuple[Tensor, Tensor]]:
        if 0 < known < len(images):
            yield from paired(known, len(images), work.size, work.shuffle, device)
            return
        order = torch.randperm(len(images), generator=work.shuffle).to(device)
        for batch in batches(order, work.size):
            yield (batch, batch[:0]) if known else (batch[:0], batch)

    def epoch() -> Iterator[Step]:
        for some, others in batched():
            views = work.normalise(work.view(images[torch.cat([some, others])]))
            yield BatchStep(loss, (views, targets[some], targets[others], shift, scale))

    return work.passes(epoch)


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
    return counted_loss(strong, label, top >= confidence)


def counted_loss(logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    """Mean over all samples of the cross entropy of those that count; 0 without samples.

    logits: [n, C]. labels: int64 [n]. counts: bool [n].
    """
    if not len(logits):
        return logits.sum()
    return (F.cross_entropy(logits, labels, reduction="none") * counts).mean()


def pull(weights: Sequence[Tensor], anchors: Sequence[Tensor], strength: float) -> Tensor:
    """Return strength / 2 sum_i ||w_i - a_i||^2, a scalar: its gradient is strength (w - a)."""
    return strength / 2 * distance(weights, anchors)


def distance(weights: Sequence[Tensor], anchors: Sequence[Tensor]) -> Tensor:
    """Return sum_i ||w_i - a_i||^2, a scalar."""
    terms = [(w - a).square().sum() for w, a in zip(weights, anchors, strict=True)]
    return torch.stack(terms).sum()


def copies(weights: Sequence[Tensor]) -> list[Tensor]:
    """Return the weights as they are now, without a graph."""
    return [w.detach().clone() for w in weights]


def pairs(work: Work) -> Iterator[tuple[Tensor, Tensor]]:
    """One epoch of pairs of indices into D_s and D_u, either of them empty where its part is."""
    known, other = len(work.data.labels), len(work.data.unlabelled)
    count = known * work.labelled_repeat
    device, none = work.data.labels.device, torch.empty(0, dtype=torch.int64)
    if count and other:
        for labelled, unlabelled in paired(count, count + other, work.size, work.shuffle, device):
            yield labelled % known, unlabelled - count
        return
    order = torch.randperm(count + other, generator=work.shuffle).to(device)
    for batch in batches(order, work.size):
        yield (batch % known, none.to(device)) if count else (none.to(device), batch)
