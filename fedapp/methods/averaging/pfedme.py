"""pFedMe (Dinh et al. 2020): a personal model on an elastic band to the server's.

Per mini-batch (their Algorithm 1, with one batch a step as in the official code): `inner_steps`
descents of F(theta) + lambda / 2 ||theta - w||^2 give the personal theta, then
w <- w - eta lambda (w - theta). A site sends w; theta is what it uses, and what is measured. It
is not the site's model after that: of a run that is over, the server has w alone.
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedapp.aggregation.base import Rule
from fedapp.aggregation.server_optimizers import FedAvgM
from fedapp.core.settings import CLOSED, Count, Positive
from fedapp.learn.optimisers import clipped
from fedapp.learn.predictors import Predictor
from fedapp.learn.steps import Step
from fedapp.learn.work_counter import count_work
from fedapp.methods.averaging.base import ByObjective, aggregate_round
from fedapp.methods.base import MethodState, Phases, Round, SiteContext, SiteReport
from fedapp.protocol.messages import Task


@dataclass(frozen=True, config=CLOSED)
class PFedMe(ByObjective):
    """Defaults are the official README's for a deep network on MNIST."""

    name: ClassVar[str] = "pfedme"

    elastic: Annotated[float, Field(ge=0)] = 15.0
    """lambda: how strongly theta is pulled to w."""
    inner_steps: Count = 5
    """K: descents of theta per mini-batch; their learning rate is training.learning_rate."""
    outer_rate: Positive = 0.005
    """eta: learning rate of w."""
    beta: Positive = 1.0
    """Server: w <- (1 - beta) w + beta mean of the sites' w."""

    def averaging(self, rule: Rule[Any]) -> Rule[Any]:
        """w <- (1 - beta) w + beta of the run's average."""
        return FedAvgM(rule, self.beta)

    def server_round(self, state: MethodState, rnd: Round) -> Phases[MethodState]:
        """Average the w of the cohort."""
        yield from aggregate_round(rnd, self.weight)
        return state

    def site_round(self, task: Task, site: SiteContext) -> SiteReport:
        """Train theta and w together; a site that has nothing to learn from measures w."""
        site.load(task.models["server"][0])
        theta = list(site.model.parameters())
        w = [tensor.detach().clone() for tensor in theta]
        with site.drawing(task):
            losses = [self.descend(step, theta, w, site) for step in self.steps(task, site)]
        evaluations, personal = site.evaluate("val", "test"), site.params()
        if not losses:
            return SiteReport(evaluations=evaluations, personal=personal)
        loss = site.finite(torch.stack(losses).mean().item(), task)
        with torch.no_grad():
            for tensor, value in zip(theta, w, strict=True):
                tensor.copy_(value)
        return SiteReport(
            site.params(),
            learned=True,
            metrics={"loss": loss},
            evaluations=evaluations,
            personal=personal,
        )

    def used(self, task: Task, site: SiteContext, answer: str = "") -> dict[str, Predictor]:
        """Return theta where it is at hand; of a run that is over, the site's w."""
        site.load(task.own)
        return {"own": Predictor(site.params())}

    def descend(
        self, step: Step, theta: Sequence[Tensor], w: Sequence[Tensor], site: SiteContext
    ) -> Tensor:
        """One mini-batch, in place; returns its loss before the first descent."""
        first = None
        for _ in range(self.inner_steps):
            loss = step(site.model)
            count_work(steps=1)
            first = loss.detach() if first is None else first
            gradients = clipped(torch.autograd.grad(loss, theta))
            with torch.no_grad():
                for t, g, anchor in zip(theta, gradients, w, strict=True):
                    t -= site.training.learning_rate * (g + self.elastic * (t - anchor))
        with torch.no_grad():
            for anchor, t in zip(w, theta, strict=True):
                anchor -= self.outer_rate * self.elastic * (anchor - t)
        assert first is not None
        return first


METHOD = PFedMe
