"""FedPer (Arivazhagan et al. 2019): the body is averaged, every site has a head of its own."""

from collections.abc import Generator, Sequence
from typing import ClassVar

from pydantic.dataclasses import dataclass
from torch import nn

from fedapp.methods._averaging import Learning, averaging_round, learn
from fedapp.methods.base import Method, Round, ServerState, SiteContext, SiteReport
from fedapp.models.parts import head_names
from fedapp.protocol import Reply, Task
from fedapp.settings import CLOSED


@dataclass(frozen=True, config=CLOSED)
class FedPer(Learning, Method):
    """No hyper-parameters beside those of local learning."""

    name: ClassVar[str] = "fedper"

    def kept_private(self, model: nn.Module) -> frozenset[str]:
        """The classifier head."""
        return head_names(model)

    def server_round(
        self, state: ServerState, rnd: Round
    ) -> Generator[Sequence[Task], Sequence[Reply], ServerState]:
        """Average the models of the cohort."""
        yield from averaging_round(rnd, self.images)
        return state

    def site_round(self, task: Task, site: SiteContext) -> SiteReport:
        """Learn from the server's model on, or measure it."""
        return learn(task, site, self.steps(task, site))


METHOD = FedPer
