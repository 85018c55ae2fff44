"""FedAvg (McMahan et al. 2017): the mean of the sites' models, by numbers of images.

With `objective="fixmatch"` it is the paper's FixAvg; with all training images labelled
(`split.labels=all`) its FedAvg-SL.
"""

from collections.abc import Generator, Sequence
from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedapp.methods._averaging import Learning, averaging_round, learn
from fedapp.methods.base import Method, Round, ServerState, SiteContext, SiteReport
from fedapp.protocol import Reply, Task
from fedapp.settings import CLOSED


@dataclass(frozen=True, config=CLOSED)
class FedAvg(Learning, Method):
    """No hyper-parameters beside those of local learning."""

    name: ClassVar[str] = "fedavg"

    def server_round(
        self, state: ServerState, rnd: Round
    ) -> Generator[Sequence[Task], Sequence[Reply], ServerState]:
        """Average the models of the cohort."""
        yield from averaging_round(rnd, self.images)
        return state

    def site_round(self, task: Task, site: SiteContext) -> SiteReport:
        """Learn from the server's model on, or measure it."""
        return learn(task, site, self.steps(task, site))


METHOD = FedAvg
