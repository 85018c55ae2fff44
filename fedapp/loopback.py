"""The driver without Flower: the same rounds, in one process, one site after the other."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from fedapp.checks import attributed
from fedapp.codec import decode_answer, decode_request, encode
from fedapp.engine import Fetch
from fedapp.errors import ProtocolError
from fedapp.federation import Federation
from fedapp.private import PrivateParts
from fedapp.protocol import Incoming, Outgoing, Refusal, Reply, SiteFacts, Task
from fedapp.scores import ScoreStore
from fedapp.settings import Experiment
from fedapp.site import Site
from fedapp.store import ModelStore


class Loopback:
    """Carries messages by function call; every message still passes the codec, as on the wire.

    The sites work on the server's own store, so no content is copied. sites_root: where each keeps
    what it shares with nobody. only: the sites that take part; None: all that the preset has.
    """

    def __init__(
        self,
        experiment: Experiment,
        federation: Federation,
        store: ModelStore,
        sites_root: Path,
        only: Sequence[int] | None = None,
    ) -> None:
        self._sites: dict[int, Site] = {
            k: federation.site(
                k,
                experiment,
                store,
                ScoreStore(),
                PrivateParts(sites_root / f"site-{k}" / "private"),
                shares_pool=True,
            )
            for k in (range(experiment.split.num_clients) if only is None else only)
        }

    def introduce(self) -> Sequence[SiteFacts]:
        """Return every site's facts."""
        return [site.facts() for site in self._sites.values()]

    def newcomers(self) -> Sequence[SiteFacts]:
        """Return nobody: all are here from the start."""
        return ()

    def leave_out(self, site: int) -> None:
        """Nothing to note: nobody is asked again."""

    def exchange(
        self, outbox: Sequence[Outgoing], fetch: Fetch, deadline_s: float
    ) -> Iterable[Incoming]:
        """Do the tasks in turn; nobody is ever late here."""
        for outgoing in outbox:
            task = decode_request(encode(outgoing.task))
            assert isinstance(task, Task)
            yield attributed(task, carried(self._sites[task.site].handle(task, {})))


def carried(incoming: Incoming) -> Incoming:
    """Return the answer as it arrives after a journey through the codec."""
    try:
        head = encode(incoming.answer)
    except ProtocolError as error:
        answer = incoming.answer
        assert isinstance(answer, Reply)  # nothing else holds a float
        return carried(Incoming(Refusal(answer.site, answer.round, str(error))))
    return Incoming(decode_answer(head), incoming.payloads, len(head))
