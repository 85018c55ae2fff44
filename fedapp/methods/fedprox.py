"""FedProx (Li et al. 2020): FedAvg with a pull towards the server's model.

A site minimises F_k(w) + mu / 2 ||w - w_t||^2 (their Eq. 2), so its gradient gains mu (w - w_t);
at mu = 0 it is FedAvg. With `objective="fixmatch"` it is the paper's FixProx
"""

from collections.abc import Generator, Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedapp.methods._averaging import Learning, averaging_round, learn
from fedapp.methods.base import Method, Round, ServerState, SiteContext, SiteReport
from fedapp.protocol import Reply, Task
from fedapp.settings import CLOSED


@dataclass(frozen=True, config=CLOSED)
class FedProx(Learning, Method):
    """Its one hyper-parameter, and those of local learning."""

    name: ClassVar[str] = "fedprox"

    proximal: Annotated[float, Field(ge=0)] = 0.01
    """mu of the proximal term; their best values lie in 0.001 to 1."""

    def server_round(
        self, state: ServerState, rnd: Round
    ) -> Generator[Sequence[Task], Sequence[Reply], ServerState]:
        """Average the models of the cohort."""
        yield from averaging_round(rnd, self.images)
        return state

    def site_round(self, task: Task, site: SiteContext) -> SiteReport:
        """Learn from the server's model on, pulled back to it, or measure it."""
        anchors: list[Tensor] = []

        def pull() -> Tensor:
            weights = list(site.model.parameters())
            if not anchors:  # at the first step the network holds the server's model
                anchors.extend(w.detach().clone() for w in weights)
            return self.proximal / 2 * distance(weights, anchors)

        return learn(task, site, self.steps(task, site), pull if self.proximal else None)


def distance(weights: Sequence[Tensor], anchors: Sequence[Tensor]) -> Tensor:
    """Return sum_i ||w_i - a_i||^2, a scalar."""
    terms = [(w - a).square().sum() for w, a in zip(weights, anchors, strict=True)]
    return torch.stack(terms).sum()


METHOD = FedProx
