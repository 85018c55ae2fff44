"""Reads the folder of a run that has ended, or that stopped between two rounds."""

from dataclasses import dataclass
from pathlib import Path

from fedapp.core.errors import RunError
from fedapp.core.untrusted_files import UntrustedFileError, read_yaml
from fedapp.experiment.config import from_plain
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.run_folder import RunFolder
from fedapp.protocol.messages import SiteFacts
from fedapp.protocol.store import ModelStore
from fedapp.server.pool import ModelPool
from fedapp.server.run_state import RunState, state_of


@dataclass(frozen=True)
class FinishedRun:
    """A run, read from config.yaml, checkpoint.json and pool/ in its folder."""

    path: Path
    experiment: Experiment
    state: RunState
    pool: ModelPool

    @property
    def facts(self) -> dict[int, SiteFacts]:
        """The facts that each site reported of itself, by its number."""
        return {k: standing.facts for k, standing in self.state.standings.sites.items()}


def finished_run(path: Path) -> FinishedRun:
    """Read the folder of a run.

    Raises RunError where no round was completed or a file is damaged, and ConfigError where the
    settings are not valid in this version.
    """
    checkpoint = RunFolder(path).load_checkpoint()
    if checkpoint is None:
        raise RunError(
            f"{path}: no run with a finished round (no checkpoint.json); name a run's folder that "
            "holds config.yaml, checkpoint.json and pool/"
        )
    config = path / "config.yaml"
    try:
        plain = read_yaml(config)
        if not isinstance(plain, dict):
            raise UntrustedFileError("it holds no settings")
    except (OSError, UntrustedFileError) as error:
        raise RunError(f"{config}: cannot be read ({error}); copy it from the run again") from error
    experiment = from_plain(plain, str(config))
    pool = ModelPool.from_plain(ModelStore(path / "pool"), checkpoint["pool"])
    return FinishedRun(path, experiment, state_of(checkpoint, experiment.method), pool)
