"""FedRGD (Zhang et al. 2021): averages of groups of sites, so that their models stay diverse.

In a round the cohort is dealt to S groups at random. The models of a group are averaged, all with
equal weight; the result is the group's replica. The server's model is the mean of the replicas. A
site starts from the replica of the group that it was in when it last learned, the first time from
the server's model: groups are dealt anew in each round, so what one learns reaches the others.

Where the server has labelled images it trains in the same phase as the sites, from its own model,
and what comes of it is a member of every group: its share in a group of n sites is 1 / (n + 1).

Sites minimise CE(D_s) + FixMatch's loss, the paper's consistency regularisation loss (CRL). Group
norm goes with it (`model.norm=group`): batch norms' statistics of sites with other classes do not
fit each other.

- DEVIATION: an image's label is of its weak view and taught by its strong one. The authors' code
  takes the same view for both.
- DEVIATION: passes or steps between averages, learning rate and warm-up are those of all methods.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass as plain
from dataclasses import field
from string import ascii_lowercase
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import nn

from fedapp.core.errors import Incompatibility, ProtocolError
from fedapp.core.settings import CLOSED
from fedapp.learn.objectives import fixmatch, supervised
from fedapp.learn.params import Schema, schema_of
from fedapp.learn.steps import Step
from fedapp.methods.averaging.base import (
    WARM_UP,
    WithPseudoLabels,
    aggregate_round,
    common,
    measurements,
    work_of,
)
from fedapp.methods.base import Arrived, MethodState, Phases, Round, SiteContext
from fedapp.methods.incompatibilities import NO_REASONS, Conditions, Reasons
from fedapp.protocol.messages import MODEL, SERVER_SITE, ModelRef, Reply, SiteFacts, Task


@plain(frozen=True)
class Groups(MethodState):
    """of: by site, the group that it was in when it last learned."""

    of: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class FedRgd(WithPseudoLabels):
    """Fields are the method's hyper-parameters beside those of all with pseudo-labels."""

    name: ClassVar[str] = "fedrgd"
    state: ClassVar[type[MethodState]] = Groups

    groups: Annotated[int, Field(ge=1, le=len(ascii_lowercase))] = 2
    """S, groups of the sites that train in a round; 1: FedAvg, all sites with equal weight."""

    def roles(self, model: nn.Module) -> Mapping[str, Schema]:
        """Each group's replica; the server makes it, and no site sends one."""
        whole = schema_of(model.state_dict())
        return {replica(group): whole for group in range(self.groups)}

    unsupported: ClassVar = {
        "rounds.robust": "it averages its groups' replicas, which would be judged as models of one "
        "site"
    }

    def incompatibilities(
        self, conditions: Conditions, why: Reasons = NO_REASONS
    ) -> list[Incompatibility]:
        """More groups than there are sites."""
        found, clients = super().incompatibilities(conditions, why), conditions.split.num_clients
        if self.groups > clients:
            rule = f"must be at most split.num_clients = {clients}: a group has a site or more"
            found.append(Incompatibility("method.groups", rule))
        return found

    def check_contents(
        self, task: Task, reply: Reply, arrived: Mapping[str, Arrived], facts: SiteFacts
    ) -> None:
        """Check that a model came alone. Raises ProtocolError."""
        if others := sorted(arrived.keys() - {MODEL}):
            raise ProtocolError(f"sent {others[0]}: the server makes replicas, sites send models")

    # --- server -----------------------------------------------------------------------------------

    def server_round(self, state: MethodState, rnd: Round) -> Phases[MethodState]:
        """Average groups, and then their replicas; the warm-up is all methods'."""
        assert isinstance(state, Groups)
        if rnd.number == 0:
            yield from aggregate_round(rnd, self.weight)
        else:
            state = yield from self._grouped(state, rnd)
        yield measurements(rnd)
        return state

    def _grouped(self, state: Groups, rnd: Round) -> Phases[Groups]:
        groups = dealt(sorted(rnd.cohort), self.groups, rnd.stream("groups", SERVER_SITE))
        tasks = [
            rnd.task(site, "train", 0, {}, server=[start(rnd, state.of.get(site))])
            for site in sorted(rnd.cohort)
        ]
        if rnd.server_learns:
            tasks.append(rnd.task(SERVER_SITE, "train", 0, {}, **common(rnd)))
        replies = yield tasks
        learned = {reply.site for reply in replies if reply.learned}
        servers = [rnd.pool.common()] if SERVER_SITE in learned else []
        replicas: list[ModelRef] = []
        now: dict[int, int] = {}
        for group, members in enumerate(groups):
            if heard := [site for site in members if site in learned]:
                models = [*map(rnd.pool.latest, heard), *servers]
                replicas.append(rnd.pool.average([(1, ref) for ref in models], role=replica(group)))
                now |= dict.fromkeys(heard, group)
        if replicas:
            rnd.pool.average([(1, ref) for ref in replicas])
        return Groups({**state.of, **now})

    # --- site -------------------------------------------------------------------------------------

    def steps(self, task: Task, site: SiteContext) -> Iterator[Step]:
        """Cross entropy on D_s or, after the warm-up, with FixMatch's loss."""
        work = work_of(task, site)
        if task.action == WARM_UP:
            return supervised(work)
        return fixmatch(work, *self.views(task, site), self.confidence, self.unlabelled_weight)


def replica(group: int) -> str:
    """Return the role of a group's replica, whose name is of letters."""
    return f"group_{ascii_lowercase[group]}"


def start(rnd: Round, group: int | None) -> ModelRef:
    """Return what a site of this group starts from; None: it was in none yet."""
    return rnd.pool.common(MODEL if group is None else replica(group))


def dealt(sites: Sequence[int], groups: int, draws: np.random.Generator) -> list[list[int]]:
    """Deal sites to groups at random, as many to each, to within one; some may get none."""
    parts = np.array_split(draws.permutation(np.array(sites, np.int64)), groups)
    return [sorted(part.tolist()) for part in parts]


METHOD = FedRgd
