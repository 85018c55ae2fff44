"""What carries messages by function call: the sites work in this very process."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from fedapp.core.errors import ProtocolError
from fedapp.experiment.experiment import Experiment
from fedapp.protocol.codec import as_received, encode
from fedapp.protocol.messages import Incoming, Outgoing, Refusal, Reply, SiteFacts
from fedapp.protocol.store import ModelStore
from fedapp.server.phases import Fetch
from fedapp.site.federation import Keeps, LoadedSites
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
        self.sites: dict[int, SiteClient] = {
            k: federation.site(
                k,
                experiment,
                store,
                sites_root / f"site-{k}",
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
        """Do the tasks one after the other; nobody is ever late here."""
        for outgoing in outbox:
            task = as_received(outgoing.task, outgoing.head)
            yield task.site, carried(self.sites[task.site].handle(task, {}))


def carried(incoming: Incoming) -> Incoming:
    """Return the answer as it arrives after a journey through the codec."""
    try:
        head = encode(incoming.answer)
    except ProtocolError as error:
        answer = incoming.answer
        assert isinstance(answer, Reply)  # nothing else holds a float
        return carried(Incoming(Refusal(answer.site, answer.round, str(error))))
    return Incoming(as_received(incoming.answer, head), incoming.payloads, len(head))
