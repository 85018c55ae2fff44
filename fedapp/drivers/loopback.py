"""The driver without Flower: the same rounds, in one process, one site after the other."""

import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path

from fedapp.experiment.experiment import Experiment
from fedapp.experiment.runfolder import check_run
from fedapp.experiment.runlock import sole_server
from fedapp.ground.errors import ProtocolError
from fedapp.learn.scores import ScoreStore
from fedapp.messages.codec import delivered, encode
from fedapp.messages.protocol import Incoming, Outgoing, Refusal, Reply, SiteFacts
from fedapp.messages.store import ModelStore
from fedapp.results.endblock import end_block
from fedapp.server.assembly import Assembly, Ending, carry_out
from fedapp.server.phases import Fetch
from fedapp.server.standings import Row
from fedapp.site.federation import Keeps, LoadedSites, federation_of
from fedapp.site.private import PrivateParts
from fedapp.site.servers import servers_site
from fedapp.site.site import SiteClient


class Loopback:
    """Carries messages by function call; every message still passes the codec, as on the wire.

    The sites work on the server's own store, so no content is copied. sites_root: where each keeps
    what it shares with nobody. only: the sites that take part; None: all that the preset has.
    keeps: where they keep their models for use; None: nowhere. `sites`: by number.
    """

    def __init__(
        self,
        experiment: Experiment,
        federation: LoadedSites,
        store: ModelStore,
        sites_root: Path,
        only: Sequence[int] | None = None,
        keeps: Keeps | None = None,
    ) -> None:
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
            for k in (range(experiment.split.num_clients) if only is None else only)
        }

    def introduce(self) -> Sequence[SiteFacts]:
        """Return every site's facts."""
        return [site.facts() for site in self.sites.values()]

    def newcomers(self) -> Sequence[SiteFacts]:
        """Return nobody: all are here from the start."""
        return ()

    def leave_out(self, site: int) -> None:
        """Nothing to note: nobody is asked again."""

    def exchange(
        self, outbox: Sequence[Outgoing], fetch: Fetch, deadline_s: float
    ) -> Iterable[tuple[int, Incoming]]:
        """Do the tasks in turn; nobody is ever late here."""
        for outgoing in outbox:
            task = delivered(outgoing.task, outgoing.head)
            yield task.site, carried(self.sites[task.site].handle(task, {}))


def carried(incoming: Incoming) -> Incoming:
    """Return the answer as it arrives after a journey through the codec."""
    try:
        head = encode(incoming.answer)
    except ProtocolError as error:
        answer = incoming.answer
        assert isinstance(answer, Reply)  # nothing else holds a float
        return carried(Incoming(Refusal(answer.site, answer.round, str(error))))
    return Incoming(delivered(incoming.answer, head), incoming.payloads, len(head))


def carrier_of(
    experiment: Experiment,
    federation: LoadedSites,
    store: ModelStore,
    sites_root: Path,
    keeps: Keeps | None = None,
) -> AbstractContextManager[Loopback]:
    """Return what carries a run's messages: to this process or, with `runtime.workers`, to others.

    To be entered for the time of the run. store: the server's pool.
    """
    if (number := experiment.runtime.workers) < 2:
        return nullcontext(Loopback(experiment, federation, store, sites_root, keeps=keeps))
    from fedapp.drivers.crew import Crew, Workplace  # it is made from this driver

    place = Workplace(experiment, store.root, sites_root, keeps)
    return Crew(federation, store, place, min(number, experiment.split.num_clients))


def run_loopback(experiment: Experiment, ending: Ending = end_block) -> tuple[Row, Path]:
    """Run an experiment in this process; return its summary and its run folder.

    ending: the words that are printed at the end.
    """
    check_run(experiment)
    federation = federation_of(experiment)
    with sole_server(experiment, federation.manifest) as folder:
        models = experiment.runtime.models
        keeps = Keeps(folder.models_root, folder.path.name) if models else None

        try:
            with ExitStack() as open_until_the_end:

                def transport(run: Assembly) -> Loopback:
                    if said := federation.particulars(experiment.split.num_clients):
                        run.progress.note(said)
                    carrier = carrier_of(
                        experiment, federation, run.store, folder.sites_root, keeps
                    )
                    return open_until_the_end.enter_context(carrier)

                return carry_out(experiment, folder, transport, servers_site, ending), folder.path
        except KeyboardInterrupt:
            again = f"runtime.resume=true runtime.run_name={folder.path.name}"
            print(f"\ninterrupted; go on with the same settings and {again}", file=sys.stderr)
            raise
