"""What methods that learn from bags have in common: averaging, two penalties, mixed kinds of sites.

Some sites may have labels, some bags with class proportions, and some neither.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedapp.core.settings import CLOSED
from fedapp.data.sites import BAGS, LABELLED, Bags, SiteData
from fedapp.learn.losses import cross_entropy
from fedapp.learn.networks.base import Network
from fedapp.learn.networks.parts import batch_norm_names
from fedapp.learn.objectives import (
    LabelledLoss,
    LocalTraining,
    detached_copies,
    proximal_penalty,
    supervised,
)
from fedapp.learn.optimisers import Penalty
from fedapp.learn.steps import Step
from fedapp.methods.averaging.base import Averaging, work_of
from fedapp.methods.base import SiteContext
from fedapp.protocol.messages import Reply, SiteFacts, Task


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class FromBags(Averaging):
    """A method derived from this defines what a site with bags minimises (`bag_steps`)."""

    learns_from: ClassVar[frozenset[str]] = frozenset({BAGS, LABELLED})

    proximal: Annotated[float, Field(ge=0)] = 0.0
    """mu of FedProx's term, mu / 2 ||w - w_t||^2; 0: FedAvg."""
    local_norms: bool = False
    """Batch norms stay at the site, as in FedBN."""
    l1: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the sum of all parameters' absolute values."""

    unsupported: ClassVar = {
        "training.uneven": "bags say how often classes occur, and are learned from as they are"
    }

    def weight(self, facts: SiteFacts, reply: Reply) -> float:
        """Return how many images a site learned from."""
        return facts.bagged + facts.labelled

    def kept_private(self, model: nn.Module) -> frozenset[str]:
        """With `local_norms`, all tensors of every batch norm."""
        return batch_norm_names(model) if self.local_norms else frozenset()

    def penalty(self, model: Network) -> Penalty | None:
        """Return the proximal term and the L1 term where their weights are above 0."""
        terms: list[Penalty] = []
        if self.proximal:
            anchors = detached_copies(model.parameters())
            terms.append(partial(proximal_penalty, anchors=anchors, strength=self.proximal))
        if self.l1:
            terms.append(lambda of: self.l1 * torch.stack([w.abs().sum() for w in of]).sum())
        return (lambda of: torch.stack([term(of) for term in terms]).sum()) if terms else None

    def steps(self, task: Task, site: SiteContext) -> Iterator[Step]:
        """First mini-batches of labelled images, then of bags, as far as the site has them."""
        whole, data = work_of(task, site), site.data
        counts = steps_by_kind(whole.steps, len(data.labels), data.bagged)
        if len(data.labels):
            yield from supervised(replace(whole, steps=counts[0]), self.labelled_loss(site))
        if data.bagged:
            work = replace(work_of(task, site), steps=counts[1])  # draws begin anew
            yield from self.bag_steps(task, site, work)

    def labelled_loss(self, site: SiteContext) -> LabelledLoss:
        """Return the loss of labelled images."""
        return cross_entropy

    @abstractmethod
    def bag_steps(self, task: Task, site: SiteContext, work: LocalTraining) -> Iterator[Step]:
        """Yield the mini-batches of a site's bags. work: how to pass over its images."""


def steps_by_kind(steps: int | None, labelled: int, bagged: int) -> tuple[int | None, int | None]:
    """Return how many of a task's mini-batches are of labelled images and how many of bags.

    They are divided by the numbers of images; with two or more mini-batches each kind that the site
    has gets at least one. None: the epochs decide.
    """
    if steps is None:
        return None, None
    first = round(steps * labelled / max(labelled + bagged, 1))
    if labelled and bagged and steps > 1:
        first = min(max(first, 1), steps - 1)
    return first, steps - first


def bags_of(data: SiteData) -> Bags:
    """Return the bags of a site that has bags."""
    known = data.parts[BAGS].supervision
    assert isinstance(known, Bags), "a part of bags"
    return known


def bag_shares(bags: Bags) -> Tensor:
    """Return pibar, each bag's share of the site's bagged inputs: float64 [M], sums to 1."""
    sizes = torch.bincount(bags.bag, minlength=len(bags.proportions)).double()
    return sizes / sizes.sum()
