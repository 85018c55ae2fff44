"""What UM-pFSSL remembers at the server: each site's helper list (Alg. 1)."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from fedapp.core.errors import ProtocolError
from fedapp.methods.base import MethodState
from fedapp.methods.um_pfssl.relation import MAX_RELATION
from fedapp.protocol.messages import Reply, ScoredRef, Task


@dataclass(frozen=True)
class HelperLists(MethodState):
    """helpers: by site, most related first."""

    helpers: Mapping[int, tuple[ScoredRef, ...]] = field(default_factory=dict)

    def needs(self) -> Collection[str]:
        """Return the digests of all that are listed: a list may name versions of long ago."""
        return {helper.model.digest for listed in self.helpers.values() for helper in listed}

    def column(self, site: int) -> str:
        """Return a site's list as `number:relation`, most related first."""
        return " ".join(f"{h.model.site}:{h.score:.3f}" for h in self.helpers.get(site, ()))

    def after(self, replies: Sequence[Reply]) -> "HelperLists":
        """Return the lists after these replies; sites that did not reply keep theirs."""
        return HelperLists({**self.helpers, **{r.site: r.helpers for r in replies}})


def check_list(task: Task, reply: Reply) -> None:
    """Check a site's helper list. Raises ProtocolError naming the rule."""
    sites = [helper.model.site for helper in reply.helpers]
    if len(set(sites)) != len(sites) or task.site in sites:
        raise ProtocolError("its helper list names a site twice, or itself")
    scores = [helper.score for helper in reply.helpers]
    if not all(0 <= score <= MAX_RELATION for score in scores):
        raise ProtocolError(f"its helper list has a relation outside [0, {MAX_RELATION:g}]")
    if scores != sorted(scores, reverse=True):
        raise ProtocolError("its helper list is not in the order of its relations")
