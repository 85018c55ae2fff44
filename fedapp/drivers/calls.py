"""What carries messages by function call: the sites work in this very process."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fedapp.experiment.experiment import Experiment
from fedapp.ground.errors import ProtocolError
from fedapp.learn.scores import ScoreStore
from fedapp.learn.together import MEMBERS, side_by_side
from fedapp.messages.codec import delivered, encode
from fedapp.messages.protocol import Incoming, Outgoing, Refusal, Reply, SiteFacts
from fedapp.messages.store import ModelStore
from fedapp.server.phases import Fetch
from fedapp.site.federation import Keeps, LoadedSites
from fedapp.site.private import PrivateParts
from fedapp.site.site import SiteClient


class Loopback:
    """Carries messages by function call; every message still passes the codec, as on the wire.

    The sites work on the server's own store, so no content is copied. sites_root: where each keeps
    what it shares with nobody. keeps: where they keep their models for use; None: nowhere. `sites`:
    by number.
    """

    def __init__(
        self,
        experiment: Experiment,
        federation: LoadedSites,
        store: ModelStore,
        sites_root: Path,
        keeps: Keeps | None = None,
    ) -> None:
        self._grouped = experiment.runtime.grouped
        self.sites: dict[int, SiteClient] = {
            k: federation.site(
                k,
                experiment,
                store,
                ScoreStore(),
                PrivateParts(sites_root / f"site-{k}" / "private"),
                shares_pool=True,
                keeps=keeps,
            )
            for k in range(experiment.split.num_clients)
        }

    def introduce(self) -> Sequence[SiteFacts]:
        """Return every site's facts."""
        return [site.introduction() for site in self.sites.values()]

    def newcomers(self) -> Sequence[SiteFacts]:
        """Return nobody: all are here from the start."""
        return ()

    def leave_out(self, site: int) -> None:
        """Nothing to note: nobody is asked again."""

    def exchange(
        self, outbox: Sequence[Outgoing], fetch: Fetch, deadline_s: float
    ) -> Iterable[tuple[int, Incoming]]:
        """Do the tasks one after the other, or side by side; nobody is ever late here."""

        def done(outgoing: Outgoing) -> tuple[int, Incoming]:
            task = delivered(outgoing.task, outgoing.head)
            return task.site, carried(self.sites[task.site].handle(task, {}))

        with side_by_side(self._grouped) as every:
            for lot in self.lots(outbox):
                yield from every(done, lot)

    def lots(self, outbox: Sequence[Outgoing]) -> Iterator[Sequence[Outgoing]]:
        """Cut tasks into lots that are done together; one by one unless sites are grouped.

        Those of sites that will take steps of equal shapes stand beside each other.
        """

        def images(outgoing: Outgoing) -> tuple[int, int]:
            counts = self.sites[outgoing.task.site].data.counts
            return counts["labelled"], counts["unlabelled"]

        size = MEMBERS if self._grouped else 1
        order = sorted(outbox, key=images) if self._grouped else outbox
        yield from (order[at : at + size] for at in range(0, len(order), size))


def carried(incoming: Incoming) -> Incoming:
    """Return the answer as it arrives after a journey through the codec."""
    try:
        head = encode(incoming.answer)
    except ProtocolError as error:
        answer = incoming.answer
        assert isinstance(answer, Reply)  # nothing else holds a float
        return carried(Incoming(Refusal(answer.site, answer.round, str(error))))
    return Incoming(delivered(incoming.answer, head), incoming.payloads, len(head))
