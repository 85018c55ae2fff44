"""FedRGD (Zhang et al. 2021): averages over groups of sites, so that models stay diverse.

In each round the cohort is divided at random into S groups. The models of a group are averaged with
equal weights; the result is the group's replica. The server's model is the mean of the replicas. A
site starts from the replica of the group that it belonged to when it last learned, and the first
time from the server's model. Groups are drawn again in each round, so that what one group learns
reaches the others.

A server that has labelled images trains in the same phase as the sites, from its own model, and its
result is a member of every group: its share in a group of n sites is 1 / (n + 1).

Sites minimise CE(D_s) + FixMatch's loss, which the paper calls consistency regularisation loss
(CRL). The preset uses group norm (`model.norm=group`): batch-norm statistics of sites with
different classes do not fit each other.

- DEVIATION: the pseudo-label comes from an image's weak view and is trained on its strong view. The
  authors' code uses the same view for both.
- DEVIATION: the passes or steps between averages, the learning rate and the warm-up are those of
  all methods here.
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
    common_models,
    measurements,
    work_of,
)
from fedapp.methods.base import Arrived, MethodState, Phases, Round, SiteContext
from fedapp.methods.incompatibilities import NO_REASONS, Conditions, Reasons
from fedapp.protocol.messages import MODEL, SERVER_SITE, ModelRef, Reply, SiteFacts, Task


@plain(frozen=True)
class Groups(MethodState):
    """of: for each site, the group that it belonged to when it last learned."""

    of: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class FedRgd(WithPseudoLabels):
    """The fields are its hyper-parameters, beside those of all methods with pseudo-labels."""

    name: ClassVar[str] = "fedrgd"
    state: ClassVar[type[MethodState]] = Groups

    groups: Annotated[int, Field(ge=1, le=len(ascii_lowercase))] = 2
    """S, the number of groups. With 1 it is FedAvg in which all sites have equal weight."""

    def roles(self, model: nn.Module) -> Mapping[str, Schema]:
        """Each group's replica, which the server makes; no site sends one."""
        whole = schema_of(model.state_dict())
        return {replica_role(group): whole for group in range(self.groups)}

    unsupported: ClassVar = {
        "rounds.robust": "it averages its groups' replicas, which would be judged as models of one "
        "site"
    }

    def incompatibilities(
        self, conditions: Conditions, why: Reasons = NO_REASONS
    ) -> list[Incompatibility]:
        """There cannot be more groups than sites."""
        found, clients = super().incompatibilities(conditions, why), conditions.split.num_clients
        if self.groups > clients:
            rule = f"must be at most split.num_clients = {clients}: a group has a site or more"
            found.append(Incompatibility("method.groups", rule))
        return found

    def check_contents(
        self, task: Task, reply: Reply, arrived: Mapping[str, Arrived], facts: SiteFacts
    ) -> None:
        """Check that a site sent nothing but its model. Raises ProtocolError."""
        if others := sorted(arrived.keys() - {MODEL}):
            raise ProtocolError(f"sent {others[0]}: the server makes replicas, sites send models")

    # --- server -----------------------------------------------------------------------------------

    def server_round(self, state: MethodState, rnd: Round) -> Phases[MethodState]:
        """Average the groups, then their replicas; the warm-up is that of all methods."""
        assert isinstance(state, Groups)
        if rnd.number == 0:
            yield from aggregate_round(rnd, self.weight)
        else:
            state = yield from self._grouped(state, rnd)
        yield measurements(rnd)
        return state

    def _grouped(self, state: Groups, rnd: Round) -> Phases[Groups]:
        groups = random_groups(sorted(rnd.cohort), self.groups, rnd.stream("groups", SERVER_SITE))
        tasks = [
            rnd.task(site, "train", 0, {}, server=[start_model(rnd, state.of.get(site))])
            for site in sorted(rnd.cohort)
        ]
        if rnd.server_learns:
            tasks.append(rnd.task(SERVER_SITE, "train", 0, {}, **common_models(rnd)))
        replies = yield tasks
        learned = {reply.site for reply in replies if reply.learned}
        servers = [rnd.pool.common()] if SERVER_SITE in learned else []
        replicas: list[ModelRef] = []
        now: dict[int, int] = {}
        for group, members in enumerate(groups):
            if heard := [site for site in members if site in learned]:
                models = [*map(rnd.pool.latest, heard), *servers]
                parts = [(1, ref) for ref in models]
                replicas.append(rnd.pool.average(parts, role=replica_role(group)))
                now |= dict.fromkeys(heard, group)
        if replicas:
            rnd.pool.average([(1, ref) for ref in replicas])
        return Groups({**state.of, **now})

    # --- site -------------------------------------------------------------------------------------

    def steps(self, task: Task, site: SiteContext) -> Iterator[Step]:
        """Cross entropy on D_s; after the warm-up also FixMatch's loss."""
        work = work_of(task, site)
        if task.action == WARM_UP:
            return supervised(work)
        return fixmatch(work, *self.views(task, site), self.confidence, self.unlabelled_weight)


def replica_role(group: int) -> str:
    """Return the role of a group's replica; a role's name consists of letters."""
    return f"group_{ascii_lowercase[group]}"


def start_model(rnd: Round, group: int | None) -> ModelRef:
    """Return the model that a site of this group starts from; None: it was in no group yet."""
    return rnd.pool.common(MODEL if group is None else replica_role(group))


def random_groups(sites: Sequence[int], groups: int, draws: np.random.Generator) -> list[list[int]]:
    """Divide sites at random into groups whose sizes differ by at most 1; some may be empty."""
    parts = np.array_split(draws.permutation(np.array(sites, np.int64)), groups)
    return [sorted(part.tolist()) for part in parts]


METHOD = FedRgd
