"""Flower's ServerApp: configuration in, rounds, result out."""

import logging

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedapp.codehash import code_hash
from fedapp.config import experiment_digest, load_run_config
from fedapp.endblock import end_block
from fedapp.errors import FedAppError
from fedapp.progress import Progress
from fedapp.protocol import Origin
from fedapp.runfolder import RunFolder, open_run
from server_app.strategy import PoolStrategy

log = logging.getLogger("flwr")
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment that the run-config describes."""
    try:
        _run(grid, context)
    except FedAppError as error:
        log.error("%s", error)
        raise SystemExit(1) from error


def _run(grid: Grid, context: Context) -> None:
    experiment = load_run_config(context.run_config)
    path, code = code_hash()
    log.info("server code %s (%s)", path, code)
    folder: RunFolder = open_run(experiment)
    origin = Origin(folder.path.name, code, experiment_digest(experiment))
    with Progress() as progress:
        strategy = PoolStrategy(experiment, origin, folder, progress)
        strategy.start(grid)
    print(end_block(strategy.outcome, folder.per_site(), folder.path), flush=True)
