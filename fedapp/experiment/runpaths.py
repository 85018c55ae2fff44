"""Where run folders are, and what they are called."""

import os
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from fedapp.experiment.experiment import Experiment
from fedapp.ground.disk import refused
from fedapp.ground.errors import RunError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")


def out_root(experiment: Experiment) -> Path:
    """Return the folder of run folders: `runtime.out`, else $FEDAPP_OUT, else ~/um-pfssl-runs."""
    return Path(experiment.runtime.out).expanduser() if experiment.runtime.out else runs_root()


def runs_root() -> Path:
    """Return the folder of run folders that no setting names."""
    return Path(os.environ.get("FEDAPP_OUT") or "~/um-pfssl-runs").expanduser()


def peers_path(experiment: Experiment) -> Path:
    """Return the folder of the run that `runtime.peers` names: a run of ours, else a path."""
    named = experiment.runtime.peers
    ours = out_root(experiment) / named
    return ours if ours.is_dir() else Path(named).expanduser()


def make_folder(root: Path, name: str, default: str) -> Path:
    """Make a folder that was not there, and return it."""
    tried = 1
    while True:
        path = root / (name or (default if tried == 1 else f"{default}-{tried}"))
        try:
            root.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o700)  # it will hold models, which tell of the sites' images
            return path
        except FileExistsError as error:
            if not root.is_dir():
                raise refused(path, error) from error
            if name:
                raise RunError(taken(path)) from None
            tried += 1
        except OSError as error:
            raise refused(path, error) from error


def default_name(plain_config: Mapping[str, Any], started: datetime) -> str:
    """Return the name of a run that was given none."""
    preset = re.sub(r"[^A-Za-z0-9_-]+", "-", str(plain_config["name"])).strip("-_")[:80] or "run"
    return f"{preset}-s{plain_config['seed']}-{started:%Y%m%d-%H%M%S}"


def taken(path: Path) -> str:
    """Say that a run has this folder, and what can be done."""
    return (
        f"{path}: there is such a run; choose another runtime.run_name, or continue it with "
        "runtime.resume=true"
    )


def newest(root: Path) -> str:
    """Name the run that was started last."""
    runs = sorted(root.glob("*/run.json"), key=lambda path: path.stat().st_mtime)
    return f"the newest is {runs[-1].parent.name}" if runs else "there are none yet"
