"""LocalOnly: no federation. Each site trains on its own labelled images, in the same cohorts.

The reference that a federated method must beat: same epochs, nothing sent to peers. The warm-up has
as many parts as that of methods that average, each with an optimiser of its own. So it is, bit for
bit, the model that `prior_shift` trains alone.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedapp.core.settings import CLOSED
from fedapp.methods.averaging.base import WARM_UP, train_alone, warm_up_parts
from fedapp.methods.base import (
    Method,
    MethodState,
    Phases,
    Round,
    SiteContext,
    SiteReport,
    warm_ups,
)
from fedapp.protocol.messages import Task


@dataclass(frozen=True, config=CLOSED)
class LocalOnly(Method[MethodState]):
    """No hyper-parameters of its own."""

    name: ClassVar[str] = "local_only"
    joins_at: ClassVar[float] = math.inf
    unsupported: ClassVar = {"training.uneven": "", "data.findings": ""}

    def server_round(self, state: MethodState, rnd: Round) -> Phases[MethodState]:
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
        """Train on D_s; a site without labels stays as it is."""
        warming_up = task.action == WARM_UP
        site.load(task.own)
        parts = warm_up_parts(task, site.training)
        losses = [loss for part in parts if (loss := train_alone(part, site)) is not None]
        if not losses:
            return SiteReport(evaluations=site.evaluate("val", "test") if warming_up else {})
        report = site.trained(fmean(losses), task)
        return replace(report, evaluations=site.evaluate("val", "test"))


METHOD = LocalOnly
