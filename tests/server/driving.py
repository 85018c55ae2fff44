"""Runs an engine over the messages of a carrier that a test makes."""

from fedapp.core.progress import Progress
from fedapp.experiment.resume import open_run
from fedapp.protocol.store import ModelStore
from fedapp.protocol.traffic import Ledger
from fedapp.server.engine import Engine
from fedapp.site.federation import federation_of


def drive(experiment, carrier_of):
    """Return the summary and the folder of a run.

    carrier_of: makes the carrier of experiment, federation, the pool's store, and the folder of the
    sites.
    """
    federation = federation_of(experiment)
    folder = open_run(experiment, federation.manifest)
    store = ModelStore(folder.pool_root)
    carrier = carrier_of(experiment, federation, store, folder.sites_root)
    with Progress() as progress:
        return Engine(experiment, carrier, folder, store, progress, Ledger()).run(), folder
