"""Ditto (Li et al. 2021): beside the common model every site trains one of its own, pulled to it.

The common model w is FedAvg's, from the labelled images. Site k's own v_k minimises
F_k(v) + lambda / 2 ||v - w_t||^2 on the same images (their Algorithm 1), w_t being the common model
that the site received; v_k starts from w_0 and never leaves the site. At lambda = 0 it is training
alone.

As in the authors' code, v_k sees the mini-batches of w, in the same order. So a site takes twice
the steps of FedAvg.
"""

from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import nn

from fedapp.core.settings import CLOSED
from fedapp.learn.objectives import detached_copies, proximal_penalty, supervised
from fedapp.learn.params import Params, assign
from fedapp.learn.training import descend
from fedapp.methods.averaging.base import FromLabelled, work_of
from fedapp.methods.base import SiteContext, SiteReport
from fedapp.protocol.messages import Task


@dataclass(frozen=True, config=CLOSED)
class Ditto(FromLabelled):
    """Its one hyper-parameter, and what a site uses."""

    name: ClassVar[str] = "ditto"
    unsupported: ClassVar = {"privacy.sums": ""}

    answer: Literal["common", "tuned"] = "tuned"
    """What a site uses: the server's model, or v_k ("tuned")."""
    attachment: Annotated[float, Field(ge=0)] = 1.0
    """lambda: how strongly v_k is pulled to the common model."""

    def memory(self, model: nn.Module, w_0: Params) -> Params:
        """The whole of v_k, from w_0 on."""
        return dict(w_0)

    def site_round(self, task: Task, site: SiteContext) -> SiteReport:
        """Train the common model, then v_k."""
        report = super().site_round(task, site)
        if report.params is None:  # it measured, or has no labels
            return report
        return replace(report, memory=self._own(task, site))

    def load_tuned(self, task: Task, site: SiteContext) -> None:
        """Load v_k; the server's model at a site that has never trained it."""
        if task.private:
            assign(site.model, site.memory)
        else:
            super().load_tuned(task, site)

    def _own(self, task: Task, site: SiteContext) -> Params:
        """Train v_k with the draws of the common model, and return it."""
        site.load(task.models["server"][0])
        anchors = detached_copies(site.model.parameters())
        penalty = partial(proximal_penalty, anchors=anchors, strength=self.attachment)
        assign(site.model, site.memory)
        with site.drawing(task):
            loss = descend(site.model, supervised(work_of(task, site)), site.training, penalty)
        site.finite(loss or 0.0, task)
        return site.params()


METHOD = Ditto
