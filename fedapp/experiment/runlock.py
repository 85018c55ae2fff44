"""One server for a run at a time."""

from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout

from fedapp.experiment.atwork import LOOK_S, SERVER
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.runfolder import RunFolder, Savable, open_run
from fedapp.experiment.runpaths import out_root
from fedapp.ground.disk import refused
from fedapp.ground.errors import RunError


@contextmanager
def sole_server(
    experiment: Experiment, manifest: Savable | None = None, identity: str = ""
) -> Iterator[RunFolder]:
    """Hold the folder that `open_run` returns: no second server carries on the same run meanwhile.

    One may be thought dead and be at work: where the SuperLink was down, or a site's link. The
    kernel lets go of the folder when the process ends, however it ends. Raises RunError where
    another process has it, and what `open_run` raises.
    """
    # One that is resumed is held before it is opened: that cuts its records back.
    first = out_root(experiment) / experiment.runtime.run_name
    early = experiment.runtime.resume and (first / "run.json").exists()
    path = first if early else (folder := open_run(experiment, manifest, identity)).path
    lock = FileLock(path / SERVER)
    try:
        lock.acquire(timeout=LOOK_S)
    except Timeout as error:
        raise RunError(
            f"{path}: its run is still going on; let it end, or end it (on Flower: flwr stop), "
            "and then resume it"
        ) from error
    except OSError as error:
        raise refused(path / SERVER, error) from error
    try:
        yield open_run(experiment, manifest) if early else folder
    finally:
        lock.release()
