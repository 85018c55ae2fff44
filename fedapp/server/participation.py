"""Who takes part in a run: sites that are here when it starts, come late, or come back."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from fedapp.core.errors import one_line
from fedapp.core.settings import DataSettings
from fedapp.protocol.messages import SiteFacts
from fedapp.server.checks import DataKind, fact_changes, joinable_sites
from fedapp.server.pool import ModelPool
from fedapp.server.run_state import RunState
from fedapp.server.standings import Standing


@dataclass
class Arrivals:
    """kind: of data that the run's sites have. say: tells the person; here it says nothing twice.

    here: the sites that tasks can be sent to. waiting: those that wait for the next round.
    """

    num_clients: int
    data: DataSettings
    kind: DataKind
    say: Callable[[str], None]
    here: set[int] = field(default_factory=set)
    waiting: Sequence[SiteFacts] = ()
    _said: set[str] = field(default_factory=set)

    def admit(
        self, found: Iterable[SiteFacts], state: RunState, pool: ModelPool, number: int
    ) -> set[int]:
        """Take in those who came since the last round; return those who cannot take part.

        number: of the round that begins. A new site gets w_0 or, where it is a peer from an earlier
        run, goes on from its model. One that was known must have the data that it had.
        """
        came, self.waiting = [*self.waiting, *found], ()
        taken = set()
        for facts in joinable_sites(came, self.num_clients, self.data, self.kind, self._say_once):
            site = facts.site
            if reason := _stranger(state, facts):
                self.here.discard(site)
                self._say_once(f"{facts.display_name} left out: {reason}")
                continue
            if site in state.standings.sites:
                self.say(f"{facts.display_name} is back in round {number}")
            else:
                pool.join(site)
                state.standings.sites[site] = Standing(facts, joined=number)
                state.held[site] = []
                if number:
                    self.say(f"{facts.display_name} joins in round {number}")
            taken.add(site)
        self.here |= taken
        return {facts.site for facts in came} - taken

    def _say_once(self, text: str) -> None:
        short = one_line(text)  # a site's own classes may be in it, others in every round
        if short not in self._said:
            self._said.add(short)
            self.say(short)


def _stranger(state: RunState, facts: SiteFacts) -> str:
    """Return why facts that bear a known number are not that site's; empty where they are."""
    if (standing := state.standings.sites.get(facts.site)) is not None:
        if standing.facts == facts:
            return ""
        changed = fact_changes(facts, standing.facts)
        return f"it holds other data than before ({changed}); restore its data"
    return ""
