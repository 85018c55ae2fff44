"""LocalOnly: no federation. Each site trains on its own labelled images, in the same cohorts.

The reference that a federated method must beat: same epochs, same draws, nothing sent to peers.
"""

import math
from collections.abc import Generator, Sequence
from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedapp.ground.settings import CLOSED
from fedapp.messages.protocol import Reply, Task
from fedapp.methods.base import (
    Method,
    MethodState,
    Round,
    SiteContext,
    SiteReport,
    warm_up,
    warm_ups,
)


@dataclass(frozen=True, config=CLOSED)
class LocalOnly(Method[MethodState]):
    """No hyper-parameters of its own."""

    name: ClassVar[str] = "local_only"
    joins_at: ClassVar[float] = math.inf

    def server_round(
        self, state: MethodState, rnd: Round
    ) -> Generator[Sequence[Task], Sequence[Reply], MethodState]:
        """Let the cohort train; in round 0 everybody warms up."""
        if rnd.number == 0:
            yield warm_ups(rnd)
        else:
            yield [rnd.task(site, "train") for site in sorted(rnd.cohort)]
        return state

    def welcome(self, rnd: Round) -> Sequence[Task]:
        """The warm-up of sites that come late."""
        return warm_ups(rnd)

    def site_round(self, task: Task, site: SiteContext) -> SiteReport:
        """Train on D_s for the round's epochs; a site without labels stays as it is."""
        if task.action == "warmup":
            return warm_up(task, site)
        site.load(task.own)
        if not len(site.data.labels):
            return SiteReport()
        targets = site.one_hot(site.data.labels)
        count, epochs = len(site.data.labels), site.training.local_epochs
        loss = site.fit(site.data.labelled, targets, count, epochs, task)
        return SiteReport(
            site.params(),
            learned=True,
            metrics={"loss": loss},
            evaluations=site.evaluate("val", "test"),
        )


METHOD = LocalOnly
