"""Flower's ServerApp: it reads the run-config and runs the experiment that this describes."""

import logging

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedapp.core.errors import ConfigError, FedAppError
from fedapp.core.process_tuning import tune_own_process
from fedapp.experiment.code_hash import code_digest, code_hash
from fedapp.experiment.config import (
    experiment_digest,
    load_run_config,
    read_run_config,
    unchecked_settings,
)
from fedapp.experiment.resume import sole_server
from fedapp.experiment.signed_runs import SIGNED, read_statement, settings_digest
from fedapp.protocol.messages import Origin
from server_app.strategy import PoolStrategy

log = logging.getLogger("flwr")
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment that the run-config describes."""
    try:
        _run(grid, context)
    except FedAppError as error:
        _say_once(error, context.run_id)
        raise  # a SystemExit would pass for success: in simulation this is not the main thread


def _say_once(error: FedAppError, run_id: int) -> None:
    """Log the error in one line, and suppress Flower's own report of it, which is a long traceback.

    A second line says how a program can find out that the run failed: the command that shows the
    log (`flwr.cli.log.start_stream` of Flower 1.41) ends with code 0 however the run ended.
    """
    log.error("%s", error)
    log.error(
        "the run has failed; `flwr run --stream` and `flwr log` end with 0 even so, and `flwr list "
        "--run-id %d --format json` says finished:failed",
        run_id,
    )
    log.addFilter(lambda record: not record.exc_info or record.exc_info[1] is not error)


def _run(grid: Grid, context: Context) -> None:
    tune_own_process()
    experiment = load_run_config(context.run_config)
    path, code = code_hash()
    log.info("server code %s (%s)", path, code)
    token = context.run_config.get(SIGNED, "")
    word = read_statement(token) if token else None
    with sole_server(experiment, identity=word.identity if word else "") as folder:
        if word is not None:
            settings = settings_digest(unchecked_settings(*read_run_config(context.run_config)))
            if why := word.differs(folder.path.name, code_digest(), settings, folder.identity):
                raise ConfigError(f"{SIGNED}: {why}: have it signed again (fedapp sign)")
        origin = Origin(
            folder.path.name, code, experiment_digest(experiment), identity=folder.identity
        )
        PoolStrategy(experiment, origin, folder).start(grid)
