"""The driver without Flower: the same rounds in one process, or in several of this machine."""

import sys
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path

from fedapp.core.progress import slow_work_notice
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.resume import check_run, sole_server
from fedapp.protocol.store import ModelStore
from fedapp.reports.run_end import COPIES, end_block
from fedapp.server.assembly import Assembly, Ending, carry_out
from fedapp.server.standings import Row
from fedapp.simulation.in_process import Loopback
from fedapp.simulation.process_pool import ProcessPool, Workplace
from fedapp.site.federation import Keeps, LoadedSites, federation_of
from fedapp.site.server_site import servers_site


def carrier_of(
    experiment: Experiment,
    federation: LoadedSites,
    store: ModelStore,
    sites_root: Path,
    keeps: Keeps | None = None,
) -> AbstractContextManager[Loopback]:
    """Return a run's transport: in this process or, with `runtime.workers`, to other processes.

    The caller enters it as a context manager for the duration of the run. store: the server's pool.
    """
    if (number := experiment.runtime.workers) < 2:
        return nullcontext(Loopback(experiment, federation, store, sites_root, keeps=keeps))
    place = Workplace(experiment, store.root, sites_root, keeps)
    return ProcessPool(federation, store, place, min(number, experiment.split.num_clients))


def run_loopback(experiment: Experiment, ending: Ending = end_block) -> tuple[Row, Path]:
    """Run an experiment without Flower; return its summary and its run folder.

    ending: makes the text that is printed at the end.
    """
    check_run(experiment)
    with slow_work_notice(f"reading the data ({experiment.data.name})", sys.stdout):
        federation = federation_of(experiment)
        copies, apart = federation.copies(experiment.split.num_clients)
    with sole_server(experiment, federation.manifest) as folder:
        # A model of places in a bank is of no use to anybody else.
        models = experiment.runtime.models and not experiment.model.simulated
        keeps = Keeps(folder.models_root, folder.path.name) if models else None

        try:
            with ExitStack() as open_until_the_end:

                def transport(run: Assembly) -> Loopback:
                    if apart:
                        run.progress.note(apart)
                    if said := federation.particulars(experiment.split.num_clients):
                        run.progress.note(said)
                    carrier = carrier_of(
                        experiment, federation, run.store, folder.sites_root, keeps
                    )
                    return open_until_the_end.enter_context(carrier)

                said = {COPIES: copies} if copies else {}
                summary = carry_out(experiment, folder, transport, servers_site, ending, said)
                return summary, folder.path
        except KeyboardInterrupt:
            again = f"runtime.resume=true runtime.run_name={folder.path.name}"
            print(f"\ninterrupted; continue with the same settings and {again}", file=sys.stderr)
            raise
