"""`fedapp track`: a run's rounds, or a comparison's, for TensorBoard or MLflow."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

from fedapp.experiment.atwork import at_work
from fedapp.experiment.runpaths import find_run, runs_root
from fedapp.tools.track.mlflow import MlflowRun
from fedapp.tools.track.series import Round, Tracked, tracked
from fedapp.tools.track.tensorboard import EventFiles

To = Literal["tensorboard", "mlflow"]

URI = "MLFLOW_TRACKING_URI"
EVERY_S = 2.0
"""Seconds between two looks at a run that goes on."""


class Tracker(Protocol):
    """Where one run's rounds go."""

    def add(self, one: Round) -> None:
        """Take a round; one that was taken before changes nothing."""

    def close(self, over: bool) -> None:
        """Take no more. over: the run is done."""


_TRACKERS: dict[To, Callable[[Tracked, str], Tracker]] = {
    "tensorboard": EventFiles,
    "mlflow": MlflowRun,
}


def track(run: str, to: To, out: Path | None, follow: bool) -> None:
    """Bring what is there to a tracker, and with `follow` what comes, until nothing goes on.

    run: a run or a comparison, its name or folder; empty: the newest run. out: folder of the event
    files or of MLflow's store; None: `tensorboard` in the run's folder; for MLflow what `URI`
    names, else `mlruns` beside your runs.
    """
    folder = find_run(run)
    where = _where(folder, to, out)
    open_now: dict[Path, tuple[Tracked, Tracker]] = {}
    sent: dict[Path, int] = {}
    try:
        while True:
            # Asked first: what comes before the end is seen after it.
            going_on = follow and at_work(folder)
            for one in tracked(folder):
                if one.folder not in open_now:
                    open_now[one.folder] = one, _TRACKERS[to](one, where)
                rounds = one.rounds()
                for each in rounds[sent.get(one.folder, 0) :]:
                    open_now[one.folder][1].add(each)
                # A run that is resumed does the rows after its checkpoint again, to the same bits.
                sent[one.folder] = max(len(rounds), sent.get(one.folder, 0))
            if not going_on:
                break
            time.sleep(EVERY_S)
    except KeyboardInterrupt:
        pass  # what is there is there; the run goes on
    finally:
        for one, tracker in open_now.values():
            tracker.close((one.folder / "summary.json").is_file())
    print(f"{len(sent)} runs, {sum(sent.values())} rounds; {_look(to, where)}")


def _where(run: Path, to: To, out: Path | None) -> str:
    """Return the folder of event files, or the URI of MLflow's store."""
    if to == "tensorboard":
        return str(out.expanduser() if out else run / "tensorboard")
    folder = out.expanduser().absolute() if out else runs_root().absolute() / "mlruns"
    return folder.as_uri() if out else os.environ.get(URI) or folder.as_uri()


def _look(to: To, where: str) -> str:
    if to == "tensorboard":
        return f"to see them: tensorboard --logdir {where}"
    if not where.startswith("file:"):
        return f"they are at {where}"
    return f"to see them: MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {where}"
