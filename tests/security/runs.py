"""Whole runs in this process whose sites a test may change before they begin."""

from fedapp.core.progress import Progress
from fedapp.experiment.resume import open_run
from fedapp.protocol.store import ModelStore
from fedapp.protocol.traffic import Ledger
from fedapp.server.engine import Engine
from fedapp.simulation.in_process import Loopback
from fedapp.site.federation import federation_of


def played(experiment, change=lambda transport: None):
    """Run an experiment; return its engine and its folder. change: gets the sites' `Loopback`."""
    federation = federation_of(experiment)
    folder = open_run(experiment, federation.manifest)
    store = ModelStore(folder.pool_root)
    transport = Loopback(experiment, federation, store, folder.sites_root)
    change(transport)
    with Progress() as progress:
        engine = Engine(experiment, transport, folder, store, progress, Ledger())
        engine.run()
    return engine, folder
