"""Where run folders are, and what they are called."""

import difflib
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedapp.ground.disk import TEMPORARY, refused
from fedapp.ground.errors import RunError
from fedapp.ground.names import RUN_NAME

if TYPE_CHECKING:  # it imports torch, for which the completion of a name cannot wait
    from fedapp.experiment.experiment import Experiment

NAME = re.compile(RUN_NAME)
RESERVED = "models"
"""No run is called so: beside the runs' folders at a site, it holds the models that are kept."""
OUT = "FEDAPP_OUT or runtime.out"
"""What says where run folders are."""
IDENTITY = "run.id"
"""Names the one run that a folder is of: 64 random hex digits, drawn when the run begins."""


def check_name(name: str, said: str = "runtime.run_name =") -> None:
    """Check a run's name, which its folder has everywhere; said: by what. Raises RunError."""
    if not NAME.fullmatch(name):
        raise RunError(
            f"{said} {name!r}: must be letters, digits, dot, dash and underscore, "
            "at most 120, the first a letter or digit"
        )
    if name.casefold() == RESERVED:
        raise RunError(
            f"{said} {name!r}: sites keep the models of all runs in a folder of that "
            "name: choose another"
        )


def new_identity() -> str:
    """Return what no other run has."""
    return secrets.token_hex(32)


def identity_of(folder: Path) -> str:
    """Return the identity of a folder's run; empty: it has none, as runs of earlier versions."""
    try:
        return (folder / IDENTITY).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def folder_of(root: Path, name: str, identity: str) -> Path:
    """Return a run's folder at a site, made where it is not there. Raises RunError, StoreError.

    Where another run of the same name has been, from another server, with other settings or begun
    anew, its folder stays as it is. This run's then is name~2, name~3, ..., as none can be called.
    """
    check_name(name)
    path, tried = root / name, 1
    try:
        while not _is_of(path, identity):
            tried += 1
            path = root / f"{name}~{tried}"
    except OSError as error:
        raise refused(path, error, setting=f"{OUT}, or the node's store-path") from error
    return path


def _is_of(path: Path, identity: str) -> bool:
    """Whether a folder is the run's; one that is not there is made, with its identity at once."""
    if path.exists():
        return identity_of(path) == identity
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY}")
    part.mkdir(mode=0o700)  # it will hold models, which tell of the site's images
    try:
        if identity:
            (part / IDENTITY).write_text(identity)
        part.rename(path)
    except OSError:
        shutil.rmtree(part, ignore_errors=True)
        if not path.exists():  # else: another process was faster
            raise
    return identity_of(path) == identity


def out_root(experiment: "Experiment") -> Path:
    """Return the folder of run folders: `runtime.out`, else $FEDAPP_OUT, else ~/um-pfssl-runs."""
    return Path(experiment.runtime.out).expanduser() if experiment.runtime.out else runs_root()


def runs_root() -> Path:
    """Return the folder of run folders that no setting names."""
    return Path(os.environ.get("FEDAPP_OUT") or "~/um-pfssl-runs").expanduser()


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
                raise refused(path, error, setting=OUT) from error
            if name:
                raise RunError(taken(path)) from None
            tried += 1
        except OSError as error:
            raise refused(path, error, setting=OUT) from error


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
