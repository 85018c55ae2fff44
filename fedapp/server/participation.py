"""Which sites take part in a run: those present at its start, late ones, and returning ones."""

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
    """Admits sites to a run.

    num_clients, data: settings of the run. kind: the kind of data that all its sites have. say:
    prints a line for the user; a reason for refusing a site is printed once. here: the sites to
    which tasks can be sent. waiting: facts of sites to be admitted before the next round.
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
        """Admit the sites that came since the last round; return those that cannot take part.

        number: of the round that begins. A new site gets w_0, and an entry in the state. A site
        that is known already must have the same data as before.
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
        short = one_line(text)  # it may quote thousands of class names, in each round other ones
        if short not in self._said:
            self._said.add(short)
            self.say(short)


def _stranger(state: RunState, facts: SiteFacts) -> str:
    """Return why facts with the number of a known site are not that site's; empty: they are."""
    if (standing := state.standings.sites.get(facts.site)) is not None:
        if standing.facts == facts:
            return ""
        changed = fact_changes(facts, standing.facts)
        return f"it holds other data than before ({changed}); restore its data"
    return ""
