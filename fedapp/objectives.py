"""What a site minimises on its own images, mini-batch by mini-batch.

An objective is a stream of steps; a step computes the loss of one mini-batch under the model as it
is at that moment, as often as it is called. Methods compose these with their own way to descend.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedapp.data.sites import SiteData
from fedapp.models.resnet9 import ResNet9
from fedapp.training import Step, batches, freeze_batch_norm, paired

View = Callable[[Tensor], Tensor]
"""uint8 images -> uint8 images, a random view of each."""


@dataclass(frozen=True)
class Work:
    """A site's images and how to go through them.

    normalise: uint8 images -> float images. size: B, images a step. shuffle: draws the order.
    """

    model: ResNet9
    data: SiteData
    normalise: Callable[[Tensor], Tensor]
    size: int
    epochs: int
    shuffle: torch.Generator

    def begin(self, images: int) -> None:
        """Put the network in training mode; with a single image, batch norm in eval mode.

        It cannot estimate a variance from one value (see `training.batches`).
        """
        self.model.train()
        if images == 1:
            freeze_batch_norm(self.model)


def supervised(work: Work) -> Iterator[Step]:
    """Cross entropy on D_s; no step where the site has no labels."""
    images, labels = work.data.labelled, work.data.labels
    work.begin(len(labels))
    for _ in range(work.epochs if len(labels) else 0):
        order = torch.randperm(len(labels), generator=work.shuffle).to(images.device)
        for batch in batches(order, work.size):
            x, y = work.normalise(images[batch]), labels[batch]
            yield lambda x=x, y=y: F.cross_entropy(work.model(x), y)  # type: ignore[misc]


def fixmatch(
    work: Work, weak: View, strong: View, confidence: float, weight: float
) -> Iterator[Step]:
    """FixMatch (Sohn et al. 2020, Eqs. 3 and 4): CE(D_s) + weight * CE(strong, label of the weak).

    A pseudo-label counts where the weak view's top probability is at least `confidence`; its
    gradient is stopped. Each step holds min(B, |D_s|) labelled and min(B, |D_u|) unlabelled images,
    seen in one forward pass; an epoch passes once over the larger part. Where one part is empty,
    the other is all there is.
    """
    data = work.data
    work.begin(len(data.labels) + 2 * len(data.unlabelled))
    for _ in range(work.epochs):
        for labelled, unlabelled in _both(work):
            x_s, y = weak(data.labelled[labelled]), data.labels[labelled]
            x_u = data.unlabelled[unlabelled]
            views = work.normalise(torch.cat([x_s, weak(x_u), strong(x_u)]))

            def step(views: Tensor = views, y: Tensor = y) -> Tensor:
                logits = work.model(views)
                sure, other = logits[len(y) :].chunk(2)
                return labelled_loss(logits[: len(y)], y) + weight * consistency(
                    sure, other, confidence
                )

            yield step


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
    each = F.cross_entropy(strong, label, reduction="none")
    return (each * (top >= confidence)).mean()


def _both(work: Work) -> Iterator[tuple[Tensor, Tensor]]:
    """One epoch of pairs of indices into D_s and D_u, either of them empty where its part is."""
    count, other = len(work.data.labels), len(work.data.unlabelled)
    device, none = work.data.labels.device, torch.empty(0, dtype=torch.int64)
    if count and other:
        for labelled, unlabelled in paired(count, count + other, work.size, work.shuffle, device):
            yield labelled, unlabelled - count
        return
    order = torch.randperm(count + other, generator=work.shuffle).to(device)
    for batch in batches(order, work.size):
        yield (batch, none.to(device)) if count else (none.to(device), batch)
