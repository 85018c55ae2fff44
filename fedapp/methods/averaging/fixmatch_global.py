"""FixMatch with the received model as the teacher; its labels are made once per task.

Known as "global pseudo-labels": FixMatch (Sohn et al. 2020) in which the averaged model that a site
received, not the one in training, names the unlabelled images. SemiFL (Diao et al. 2022) labels
once per round from the received model too. Here:

- Teacher: the received model in evaluation mode, on the images as they are.
- Label: its top class, where its probability is at least `confidence`.
- A site minimises CE(D_s, weak views) + lambda_u CE(strong view, label), steps as of FixMatch: a
  step's mean is over all its unlabelled images, and those without a label add zero.

The warm-up is supervised, as of all methods.
"""

from collections.abc import Iterator
from dataclasses import dataclass as plain
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedapp.core.settings import CLOSED
from fedapp.data.sites import SiteData
from fedapp.learn.class_imbalance import NO_ADJUSTMENT, LogitAdjustment
from fedapp.learn.objectives import (
    LocalTraining,
    index_pairs,
    labelled_loss,
    selected_cross_entropy,
    supervised,
)
from fedapp.learn.steps import Step, View
from fedapp.methods.averaging.base import WARM_UP, WithPseudoLabels, work_of
from fedapp.methods.base import SiteContext
from fedapp.protocol.messages import Task


@dataclass(frozen=True, config=CLOSED)
class FixMatchGlobal(WithPseudoLabels):
    """No hyper-parameters beside those of all methods with pseudo-labels."""

    name: ClassVar[str] = "fixmatch_global"
    unsupported: ClassVar = {"privacy.sums": ""}

    def images_per_step(self, batch_size: int, data: SiteData) -> int:
        """A labelled image and one view of an unlabelled one for each of a batch."""
        return 2 * batch_size

    def steps(self, task: Task, site: SiteContext) -> Iterator[Step]:
        """Cross entropy on D_s or, after the warm-up, on all that has a label; see above."""
        work = work_of(task, site)
        if task.action == WARM_UP:
            return supervised(work)
        answers = site.predicted(site.data.unlabelled)  # the network holds the received model
        top, labels = answers.to(site.device).max(1)
        sure = top >= self.confidence
        views = self.views(task, site)
        return fixed_label_steps(work, *views, labels, sure, self.unlabelled_weight)


@plain(frozen=True)
class FixedLabelLoss:
    """What a step of `fixed_label_steps` minimises; equal where weight and shift are."""

    weight: float
    shift: LogitAdjustment = NO_ADJUSTMENT

    def __call__(
        self, network: nn.Module, views: Tensor, y: Tensor, y_u: Tensor, counts: Tensor
    ) -> Tensor:
        """Normalised views: weak ones of D_s, with labels y, then strong ones of D_u."""
        logits, count = network(views), len(y)
        loss = labelled_loss(self.shift(logits[:count]), y)
        return loss + self.weight * selected_cross_entropy(logits[count:], y_u, counts)


def fixed_label_steps(
    work: LocalTraining, weak: View, strong: View, labels: Tensor, sure: Tensor, weight: float
) -> Iterator[Step]:
    """CE(D_s, weak views) + weight * mean over D_u of sure_i CE(strong view of i, labels_i).

    labels: int64 [n_u], fixed pseudo-labels. sure: bool [n_u], those that count. Steps and epochs
    are those of `objectives.two_views`, without the weak views of D_u.
    """
    data, loss = work.data, FixedLabelLoss(weight, work.shift)
    work.begin(len(data.labels) + len(data.unlabelled))

    def epoch() -> Iterator[Step]:
        for labelled, unlabelled in index_pairs(work):
            x_s, y = weak(data.labelled[labelled]), data.labels[labelled]
            views = work.normalise(torch.cat([x_s, strong(data.unlabelled[unlabelled])]))
            yield Step(loss, (views, y, labels[unlabelled], sure[unlabelled]))

    yield from work.passes(epoch)


METHOD = FixMatchGlobal
