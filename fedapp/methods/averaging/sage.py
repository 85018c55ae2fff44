"""SAGE (Liu et al., CVPR 2025): pseudo-labels from the model in training and from the received one.

As in the authors' code, of every weak view of an unlabelled image, in every step:

- "own" is the network in training, its gradient stopped; "global" is the received model, which
  stays as it came, in evaluation mode. Each gives a top class and its probability p.
- w = exp(-ln 2 / `half_gap` |p_own - p_global|): 1 at equal confidence, 1/2 at that gap.
- Target: w onehot(own) + (1 - w) onehot(global) where p_own is at least `confidence`, else
  onehot(global). It counts where either of the two is that sure.
- Loss: CE(D_s, weak views) + lambda_u mean KL(target || strong view), the mean over all images.

Labelled images join the unlabelled ones, without their labels.

Where this differs from that code:

- DEVIATION: a step has as many unlabelled as labelled images, there twice as many; an epoch passes
  once over D_u and D_s together, there twice.
- DEVIATION: a labelled image counts once in a site's weight in the average, there twice.
- The warm-up is supervised and there is no weight decay, as of all methods here.
"""

import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedapp.core.settings import CLOSED, Positive
from fedapp.data.sites import Part
from fedapp.learn.objectives import supervised, two_views
from fedapp.learn.steps import Step
from fedapp.methods.averaging.base import WARM_UP, WithPseudoLabels, work_of
from fedapp.methods.base import SiteContext
from fedapp.protocol.messages import Task


@dataclass(frozen=True, config=CLOSED)
class Sage(WithPseudoLabels):
    """Its one hyper-parameter, and those of all methods with pseudo-labels."""

    name: ClassVar[str] = "sage"
    unsupported: ClassVar = {"privacy.sums": ""}

    half_gap: Positive = 0.05
    """Gap of confidences at which own and global labels weigh the same (kappa = ln 2 / it)."""

    def steps(self, task: Task, site: SiteContext) -> Iterator[Step]:
        """Cross entropy on D_s or, after the warm-up, also what is said above."""
        work = work_of(task, site)
        if task.action == WARM_UP:
            return supervised(work)
        received = copy.deepcopy(site.model).eval()  # the network holds the received model

        def unlabelled_loss(views: Tensor, own: Tensor, strong: Tensor) -> Tensor:
            with torch.no_grad():
                given = received(views)
            return corrected_loss(own, given, strong, self.confidence, self.half_gap)

        everything = Part(torch.cat([site.data.unlabelled, site.data.labelled]))
        work = replace(work, data=site.data.with_parts(unlabelled=everything))
        return two_views(
            work, *self.views(task, site), unlabelled_loss, weight=self.unlabelled_weight
        )


def corrected_loss(
    own: Tensor, received: Tensor, strong: Tensor, confidence: float, half_gap: float
) -> Tensor:
    """Mean over all images of KL(target || strong) where it counts; 0 without images.

    own, received, strong: logits [n, C], of the weak view twice and of the strong view.
    """
    if not len(own):
        return strong.sum()
    targets, counts = corrected_targets(
        torch.softmax(own.detach(), dim=1), torch.softmax(received, dim=1), confidence, half_gap
    )
    each = F.kl_div(F.log_softmax(strong, dim=1), targets, reduction="none").sum(1)
    return (each * counts).mean()


def corrected_targets(
    own: Tensor, received: Tensor, confidence: float, half_gap: float
) -> tuple[Tensor, Tensor]:
    """Return soft targets [n, C], whose rows sum to 1, and which of them count, bool [n].

    own, received: probabilities [n, C].
    """
    (top, label), (top_g, label_g) = own.max(1), received.max(1)
    weight = torch.exp(-math.log(2) / half_gap * (top - top_g).abs())
    weight = torch.where(top >= confidence, weight, 0.0)[:, None]
    classes = own.shape[1]
    mine, theirs = (F.one_hot(each, classes).to(own.dtype) for each in (label, label_g))
    return weight * mine + (1 - weight) * theirs, (top >= confidence) | (top_g >= confidence)


METHOD = Sage
