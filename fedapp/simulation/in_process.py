"""The transport of a run in one process: messages are function calls."""

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
    """Carries messages by function call. Every message is still encoded and decoded, as by Flower.

    The sites work on the server's own store, so no content is copied. sites_root: folder of the
    sites' own folders, for what they share with nobody. keeps: where the sites keep their finished
    models; None: they keep none. `sites`: the sites by number.
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
        """Return no site: all are here from the start."""
        return ()

    def leave_out(self, site: int) -> None:
        """Do nothing: a site in this process is always here."""

    def exchange(
        self, outbox: Sequence[Outgoing], fetch: Fetch, deadline_s: float
    ) -> Iterable[tuple[int, Incoming]]:
        """Do the tasks one after the other. The deadline does not count here."""
        for outgoing in outbox:
            task = as_received(outgoing.task, outgoing.head)
            yield task.site, carried(self.sites[task.site].handle(task, {}))


def carried(incoming: Incoming) -> Incoming:
    """Return an answer as the server gets it: encoded and decoded; a refusal if it cannot be."""
    try:
        head = encode(incoming.answer)
    except ProtocolError as error:
        answer = incoming.answer
        assert isinstance(answer, Reply)  # nothing else holds a float
        return carried(Incoming(Refusal(answer.site, answer.round, str(error))))
    return Incoming(as_received(incoming.answer, head), incoming.payloads, len(head))
