"""TensorBoard's event files of a run, by torch's own writer."""

from pathlib import Path

from fedapp.ground.disk import refused
from fedapp.ground.extras import needs
from fedapp.tools.track.series import Round, Tracked

SUFFIX = ".fedapp"
"""Ending of the files that are ours, and so are replaced."""


class EventFiles:
    """Writes a run's rounds to event files; what was written of it before is replaced.

    where: the folder that gets a folder for the run. Raises ConfigError where TensorBoard is not
    installed, StoreError where the disk refuses.
    """

    def __init__(self, run: Tracked, where: str) -> None:
        needs("track", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._run, folder = run, Path(where) / run.name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for old in folder.glob(f"events.out.tfevents.*{SUFFIX}"):
                old.unlink()
            self._writer = SummaryWriter(str(folder), filename_suffix=SUFFIX)
        except OSError as error:
            raise refused(folder, error) from error
        lines = [f"| {key} | {value} |" for key, value in run.settings.items()]
        table = "\n".join(["| setting | value |", "|---|---|", *lines])
        self._writer.add_text("settings", table, walltime=run.started)

    def add(self, one: Round) -> None:
        """Add a round, at the time at which it was done."""
        at = self._run.started + one.seconds
        for key, value in one.values.items():
            self._writer.add_scalar(key, value, one.number, walltime=at)
        self._writer.flush()

    def close(self, over: bool) -> None:
        """Close the files; they do not tell a run that is over from one that is not."""
        self._writer.close()
