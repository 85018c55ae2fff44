"""What a site minimises on its own images, mini-batch by mini-batch.

An objective is a stream of steps. A step computes the loss of one mini-batch under the network that
it is given, as often as it is called. Methods combine these steps with their own optimisation.
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
    ImbalanceRemedy,
    LogitAdjustment,
    balanced_indices,
    class_mix_as_sampled,
)
from fedapp.learn.losses import cross_entropy, finding_loss
from fedapp.learn.networks.base import Network
from fedapp.learn.steps import Step, View, batches, paired, repeated
from fedapp.learn.training import freeze_batch_norm

LabelledLoss = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""(network, normalised images [n, ...], their labels [n]), n >= 1 -> a scalar."""
UnlabelledLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(normalised weak views, logits of the weak views, logits of the strong views), each [n, ...], n
>= 0 -> a scalar.
"""


@dataclass(frozen=True)
class LocalTraining:
    """The images of a site, and how training goes through them.

    model: the network that learns. Steps may be called with any network; only this one's mode is
    set (`begin`).
    normalise: uint8 images -> float images.
    size: B, images in a step.
    epochs: passes over the images.
    shuffle: draws their order.
    steps: number of mini-batches, in place of `epochs` passes; None: the passes.
    view: augmentation of images that are learned from their label alone; FixMatch and the like have
    views of their own.
    labelled_repeat: how often each labelled image occurs in a pass.
    uneven: the remedy for class imbalance (`learn.class_imbalance`).
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
    uneven: ImbalanceRemedy = PLAIN

    @property
    def shift(self) -> LogitAdjustment:
        """The adjustment that is added to the logits of labelled images in training."""
        if self.uneven != ADJUSTED or not len(self.data.labels):
            return NO_ADJUSTMENT
        return LogitAdjustment(tuple(self.mix.log().tolist()))

    @property
    def mix(self) -> Tensor:
        """The class mix of D_s as it is sampled: float64 [C], every entry above 0, sum 1."""
        return class_mix_as_sampled(self.data.labels, self.data.num_classes, self.uneven)

    def drawn(self) -> Tensor:
        """Return the indices into D_s that a pass covers, unshuffled: int64 [labelled_repeat n]."""
        known = len(self.data.labels)
        if self.uneven == BALANCED:
            return balanced_indices(self.data.labels, known * self.labelled_repeat, self.shuffle)
        return torch.arange(known).repeat(self.labelled_repeat)

    def passes(self, epoch: Callable[[], Iterator[Step]]) -> Iterator[Step]:
        """Yield the mini-batches of `epochs` passes, or `steps` mini-batches."""
        return repeated(epoch, self.epochs, self.steps)

    def begin(self, images: int) -> None:
        """Put the network into training mode; with a single image, batch norm into evaluation mode.

        A variance cannot be estimated from one value (see `steps.batches`).
        """
        self.model.train()
        if images == 1:
            freeze_batch_norm(self.model)


def supervised(work: LocalTraining, loss: LabelledLoss = cross_entropy) -> Iterator[Step]:
    """Yield the steps of a supervised loss on D_s; none if the site has no labels.

    The loss is cross entropy by default. For findings it is `finding_loss`, whichever loss is
    given.
    """
    images, labels = work.data.labelled, work.data.labels
    mean = loss is cross_entropy  # another loss may depend on more than single images
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
    """Yield FixMatch's steps: CE(D_s) + weight * CE(strong view, label of the weak view).

    Sohn et al. 2020, Eqs. 3 and 4. A pseudo-label counts where the highest probability of the weak
    view is at least `confidence`; no gradient flows through it. The mini-batches are those of
    `two_views`.
    """
    return two_views(work, weak, strong, Consistency(confidence), weight)


@dataclass(frozen=True)
class Consistency:
    """FixMatch's `UnlabelledLoss`. Two with equal confidence compare equal."""

    confidence: float

    def __call__(self, _: Tensor, weak: Tensor, strong: Tensor) -> Tensor:
        """Return `consistency` of the logits of the weak and the strong views."""
        return consistency(weak, strong, self.confidence)


@dataclass(frozen=True)
class TwoViewsLoss:
    """The loss of one step of `two_views`. Two with equal parts compare equal."""

    unlabelled: UnlabelledLoss
    weight: float
    shift: LogitAdjustment = NO_ADJUSTMENT

    def __call__(self, network: nn.Module, views: Tensor, y: Tensor) -> Tensor:
        """Return the loss.

        views: normalised weak views of D_s, whose labels are y, then weak and strong views of D_u.
        """
        logits, count = network(views), len(y)
        (seen, _), (sure, other) = views[count:].chunk(2), logits[count:].chunk(2)
        loss = labelled_loss(self.shift(logits[:count]), y)
        return loss + self.weight * self.unlabelled(seen, sure, other)


def two_views(
    work: LocalTraining, weak: View, strong: View, unlabelled_loss: UnlabelledLoss, weight: float
) -> Iterator[Step]:
    """Yield steps of CE(D_s, weak views) + weight * a loss of weak and strong views of D_u.

    Each step has min(B, |D_s|) labelled and min(B, |D_u|) unlabelled images, which the network sees
    in one forward pass. An epoch is one pass over the larger part. If one part is empty, steps
    consist of the other.
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
    """Return the mean cross entropy; 0 without labels."""
    return F.cross_entropy(logits, labels) if len(labels) else logits.sum()


def consistency(weak: Tensor, strong: Tensor, confidence: float) -> Tensor:
    """Return the mean of 1[max q >= confidence] CE(strong, arg max q), with q = softmax(weak).

    weak, strong: logits [n, C]. The mean is over all n samples; it is 0 without samples. No
        gradient flows into `weak`.
    """
    if not len(weak):
        return weak.sum()
    top, label = torch.softmax(weak.detach(), dim=1).max(1)
    return selected_cross_entropy(strong, label, top >= confidence)


def selected_cross_entropy(logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    """Return the sum of the cross entropies of the selected samples, divided by n; 0 if n is 0.

    logits: [n, C]. labels: int64 [n]. counts: bool [n], which samples are selected.
    """
    if not len(logits):
        return logits.sum()
    return (F.cross_entropy(logits, labels, reduction="none") * counts).mean()


def proximal_penalty(
    weights: Sequence[Tensor], anchors: Sequence[Tensor], strength: float
) -> Tensor:
    """Return strength / 2 sum_i ||w_i - a_i||^2, a scalar. Its gradient is strength (w - a)."""
    return strength / 2 * squared_distance(weights, anchors)


def squared_distance(weights: Sequence[Tensor], anchors: Sequence[Tensor]) -> Tensor:
    """Return sum_i ||w_i - a_i||^2, a scalar."""
    terms = [(w - a).square().sum() for w, a in zip(weights, anchors, strict=True)]
    return torch.stack(terms).sum()


def detached_copies(weights: Iterable[Tensor]) -> list[Tensor]:
    """Return copies of the weights as they are now, without a graph."""
    return [w.detach().clone() for w in weights]


def index_pairs(work: LocalTraining) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield an epoch of pairs of indices into D_s and D_u; indices of an empty part are empty."""
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
