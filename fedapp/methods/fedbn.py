"""FedBN (Li et al. 2021): FedAvg, but batch norm stays at home, parameters and statistics.

Batch norms are found by module type. With `objective="fixmatch"` it is the paper's FixBN
"""

from collections.abc import Generator, Sequence
from typing import ClassVar

from pydantic.dataclasses import dataclass
from torch import nn

from fedapp.methods._averaging import Learning, averaging_round, learn
from fedapp.methods.base import Method, Round, ServerState, SiteContext, SiteReport
from fedapp.models.parts import batch_norm_names
from fedapp.protocol import Reply, Task
from fedapp.settings import CLOSED


@dataclass(frozen=True, config=CLOSED)
class FedBN(Learning, Method):
    """No hyper-parameters beside those of local learning."""

    name: ClassVar[str] = "fedbn"

    def kept_private(self, model: nn.Module) -> frozenset[str]:
        """Everything of every batch norm: weight, bias, running statistics, counter."""
        return batch_norm_names(model)

    def server_round(
        self, state: ServerState, rnd: Round
    ) -> Generator[Sequence[Task], Sequence[Reply], ServerState]:
        """Average the models of the cohort."""
        yield from averaging_round(rnd, self.images)
        return state

    def site_round(self, task: Task, site: SiteContext) -> SiteReport:
        """Learn from the server's model on, or measure it."""
        return learn(task, site, self.steps(task, site))


METHOD = FedBN
