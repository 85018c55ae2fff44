"""Where run folders are, and what they are called."""

import difflib
import os
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedapp.ground.disk import refused
from fedapp.ground.errors import RunError

if TYPE_CHECKING:  # it imports torch, for which the completion of a name cannot wait
    from fedapp.experiment.experiment import Experiment

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")


def out_root(experiment: "Experiment") -> Path:
    """Return the folder of run folders: `runtime.out`, else $FEDAPP_OUT, else ~/um-pfssl-runs."""
    return Path(experiment.runtime.out).expanduser() if experiment.runtime.out else runs_root()


def runs_root() -> Path:
    """Return the folder of run folders that no setting names."""
    return Path(os.environ.get("FEDAPP_OUT") or "~/um-pfssl-runs").expanduser()


def peers_path(experiment: "Experiment") -> Path:
    """Return the folder of the run that `runtime.peers` names: one in `out_root`, else a path."""
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
    names = _by_age(root, "run.json")
    return f"the newest is {names[-1]}" if names else "there are none yet"


def run_names(root: Path) -> list[str]:
    """Return the names of the runs and comparisons in a folder of run folders, the oldest first."""
    return _by_age(root, "run.json", "comparison.json")


def find_run(named: str) -> Path:
    """Return the folder of a run or a comparison: one of ours by its name, else by its path.

    named: empty: our newest run; what begins with a dot is a path, as no name does. What the folder
    holds is not looked at. Raises RunError where there is no such folder.
    """
    root = runs_root()
    if not named:
        names = _by_age(root, "run.json")
        if not names:
            raise RunError(f"{root}: no runs yet: begin one (fedapp run), or name a run's folder")
        return root / names[-1]
    path = Path(named).expanduser()
    # No name begins with a dot: "." is the folder that one works in.
    for found in (path,) if named.startswith(".") else (root / named, path):
        if found.is_dir():
            return found
    close = difflib.get_close_matches(named, run_names(root), n=1)
    hint = f"did you mean '{close[0]}'?" if close else newest(root)
    raise RunError(f"'{named}': no such run in {root}, and no such folder; {hint}")


def _by_age(root: Path, *marks: str) -> list[str]:
    """Return the names of the folders that hold one of these files, the oldest file first."""
    found = [path for mark in marks for path in root.glob(f"*/{mark}")]
    return [path.parent.name for path in sorted(found, key=lambda path: path.stat().st_mtime)]
