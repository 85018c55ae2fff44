"""A run's folder: where it is, what it is called, what lies in it, whether its run goes on.

Written whole, when the run begins:

- config.yaml: the settings, resolved; a preset that runs the same again, in a folder of its own
- run.json: versions, code, digests of settings and manifest, start
- run.id: tells this run from every other of its name (`folder_of`)
- manifest.safetensors: who holds which image, where the server knows it

Round by round, and at the end:

- metrics.jsonl: one JSON object per round, appended
- sites.jsonl: one JSON object per round: what each site that answered said of itself, appended
- traffic.csv: models and bytes by round, site, direction and kind, appended
- checkpoint.json: state after a whole round
- changes.jsonl: one JSON object per round since then, appended; gone when the run has ended
- per_site.csv: one row per site, at the end
- evaluations.json: each site's latest confusion matrix and calibration sums, at the end
- summary.json: the result, at the end

Beside these:

- pool/, sites/: models, and the simulated sites' own stores
- models/: the simulated sites' models for use
- server.lock: held by the server that carries on the run

Nothing here imports torch: who completes a run's name or watches a run leaves the machine to it.
"""

import csv
import difflib
import fcntl
import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import yaml
from filelock import FileLock, Timeout
from pydantic_core import to_json

from fedapp.core.disk import TEMPORARY, append_durable, truncate_durable, write_atomic, write_error
from fedapp.core.errors import FedAppError, RunError, StoreError
from fedapp.core.formatting import csv_text
from fedapp.core.names import RUN_NAME
from fedapp.core.untrusted_files import parse_json, read_json
from fedapp.experiment.code_hash import code_hash, versions
from fedapp.protocol.traffic import COLUMNS

if TYPE_CHECKING:  # it imports torch
    from fedapp.experiment.experiment import Experiment

Row = dict[str, Any]

METRICS_FILE, SITES_FILE, TRAFFIC_FILE = "metrics.jsonl", "sites.jsonl", "traffic.csv"
CHECKPOINT_FILE, CHANGES_FILE = "checkpoint.json", "changes.jsonl"
CHANGED_TABLES = "tables"
"""Of a line of changes: the mappings of which it has only what changed."""
RUN_NAME_PATTERN = re.compile(RUN_NAME)
RESERVED_NAME = "models"
"""No run is called so: beside the runs' folders at a site, it holds the models that are kept."""
OUT_SETTINGS = "FEDAPP_OUT or runtime.out"
"""What says where run folders are."""
IDENTITY_FILE = "run.id"
"""Names the one run that a folder is of: 64 random hex digits, drawn when the run begins."""
SERVER_LOCK, COMPARISON_LOCK = "server.lock", ".lock"
"""File of a run's folder that its server holds locked; of a comparison's, that who carries it out
does."""
LOCK_TIMEOUT_S = 1.0
"""Seconds for which they try to take it: `is_running` may look at it just now."""


class Savable(Protocol):
    """What a run folder asks of a manifest."""

    def save(self, path: Path | str) -> None:
        """Write it."""

    def digest(self) -> str:
        """Return the SHA-256 of its content, in hex."""


class RunFolder:
    """The folder of one run, `path`: its files are written and read back here.

    `create` makes a new one; `resume.open_run` makes or opens the one that an experiment asks for.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def pool_root(self) -> Path:
        """Where the server keeps models."""
        return self.path / "pool"

    @property
    def sites_root(self) -> Path:
        """Where simulated sites keep their own."""
        return self.path / "sites"

    @property
    def models_root(self) -> Path:
        """Where they keep their models for use."""
        return self.path / "models"

    @property
    def identity(self) -> str:
        """What no other run has; empty: one of an earlier version."""
        return identity_of(self.path)

    @classmethod
    def create(
        cls,
        root: Path,
        name: str,
        plain_config: Mapping[str, Any],
        manifest: Savable | None,
        digest: str,
        identity: str = "",
    ) -> Self:
        """Make a new folder and note down what runs.

        name: of the folder; empty: preset, seed and start time, made unique. digest: of the
        settings (`config.experiment_digest`), by which `resume` knows the experiment again.
        identity: as the run was signed with; empty: one is drawn.

        Raises RunError where the name is no folder name or is taken, StoreError where the disk
        refuses; then no folder stays.
        """
        if name:
            check_name(name)
        started = datetime.now().astimezone()
        folder = cls(make_folder(root, name, default_name(plain_config, started)))
        facts = {
            "experiment": digest,
            "manifest": manifest.digest() if manifest else None,
            "code": code_hash()[1],
            "versions": versions(),
            "started": started.isoformat(timespec="seconds"),
        }
        try:
            folder.write(IDENTITY_FILE, identity or new_identity())
            folder.write("config.yaml", _as_preset(plain_config))
            if manifest:
                manifest.save(folder.path / "manifest.safetensors")
            folder.write("run.json", pretty_json(facts))
        except FedAppError:
            shutil.rmtree(folder.path, ignore_errors=True)
            raise
        return folder

    def discard_unless_begun(self) -> None:
        """Remove the folder of a run that ended before its first checkpoint: it holds nothing."""
        if not (self.path / "checkpoint.json").exists():
            shutil.rmtree(self.path, ignore_errors=True)

    def going_on(self) -> str:
        """Return what to do to go on with a run that stopped, once its cause is mended."""
        if not (self.path / "checkpoint.json").exists():
            return "start again"
        return f"go on with runtime.resume=true runtime.run_name={self.path.name}"

    def note_manifest(self, digest: str) -> None:
        """Note in run.json which split the sites hold, where the server itself does not know."""
        facts = self.read_json("run.json") or {}
        if facts.get("manifest") is None:
            self.write("run.json", pretty_json({**facts, "manifest": digest}))

    def append_metrics(self, row: Row) -> None:
        """Add a round's row (it has "round"). NaN and infinity become null: JSON has neither.

        Raises StoreError where the disk refuses; the file then is as before.
        """
        self._append(METRICS_FILE, row)

    def append_sites(self, row: Row) -> None:
        """Add a round's row of its sites (it has "round"), as `append_metrics` does."""
        self._append(SITES_FILE, row)

    def append_traffic(self, rows: Sequence[Sequence[int | str]]) -> None:
        """Add a round's rows of the ledger to traffic.csv. Raises StoreError as above."""
        path = self.path / TRAFFIC_FILE
        begun = path.exists() and path.stat().st_size  # the disk may have refused the first rows
        head = () if begun else (COLUMNS,)
        lines = (",".join(map(str, row)) + "\n" for row in (*head, *rows))
        append_durable(path, "".join(lines).encode())

    def metrics(self) -> list[Row]:
        """Return the rows of whole lines, each with its "round".

        A line cut by a crash or damaged, and what follows, is left out.
        """
        return self._rows(METRICS_FILE)

    def sites(self) -> list[Row]:
        """Return the rows of sites.jsonl likewise; none of a run by a version that had none."""
        return self._rows(SITES_FILE)

    def _append(self, name: str, row: Row) -> None:
        append_durable(self.path / name, _line(row).encode())

    def _rows(self, name: str) -> list[Row]:
        try:
            lines = (self.path / name).read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        rows: list[Row] = []
        for line in lines:
            if (row := _row(line)) is None:
                break
            rows.append(row)
        return rows

    def write_per_site(self, rows: Sequence[Row]) -> None:
        """Write per_site.csv; columns as they first come up, None as an empty field."""
        columns = list(dict.fromkeys(key for row in rows for key in row)) or ["site"]
        values = ([row.get(column) for column in columns] for row in rows)
        self.write("per_site.csv", csv_text([columns, *values]))

    def per_site(self) -> list[Row]:
        """Return the rows of per_site.csv with numbers as numbers and empty fields as None."""
        try:
            text = (self.path / "per_site.csv").read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        return [{k: _field(v) for k, v in row.items()} for row in csv.DictReader(text.splitlines())]

    def write_evaluations(self, evaluations: Mapping[str, Any]) -> None:
        """Write evaluations.json: each site's latest confusion matrix and calibration sums."""
        self.write("evaluations.json", _compact(evaluations) + "\n")

    def write_summary(self, summary: Row) -> None:
        """Write summary.json. NaN and infinity become null."""
        self.write("summary.json", pretty_json(summary))

    def save_checkpoint(self, state: Mapping[str, Any]) -> int:
        """Write the state after a whole round; it has "round", the last row of the metrics.

        state: of what JSON can hold, and dataclasses of that. Returns its bytes. Raises StoreError
        where the disk refuses; what was saved before stays.
        """
        assert "round" in state
        text = _compact(state)
        self.write(CHECKPOINT_FILE, text)
        (self.path / CHANGES_FILE).unlink(
            missing_ok=True
        )  # else: of rounds before it, not read again
        return len(text)

    def append_changes(self, state: Mapping[str, Any], tables: Sequence[str]) -> int:
        """Add the state after a whole round where of some mappings only what changed is given.

        tables: those mappings, as keys with dots between. Returns bytes and raises StoreError as
        `save_checkpoint` does.
        """
        line = _compact({**state, CHANGED_TABLES: tables}) + "\n"
        append_durable(self.path / CHANGES_FILE, line.encode())
        return len(line)

    def load_checkpoint(self) -> Row | None:
        """Return the state last saved, or None. Raises RunError where a file is damaged.

        A last line of changes that was cut is left out: its round did not end.
        """
        path = self.path / CHANGES_FILE
        try:  # before the whole state, so that one written meanwhile takes the place of both
            lines = path.read_bytes().splitlines(keepends=True)
        except (FileNotFoundError, NotADirectoryError):
            lines = []
        state = self.read_json(CHECKPOINT_FILE)
        if state is None:
            return None
        if not isinstance(state.get("round"), int):
            raise RunError(damaged_file(self.path / CHECKPOINT_FILE, "has no round"))
        for line in (line for line in lines if line.endswith(b"\n")):
            try:
                change = parse_json(line)
                if change["round"] > state["round"]:
                    state = apply_change(state, change)
            except (ValueError, LookupError, TypeError) as error:
                raise RunError(damaged_file(path, str(error))) from error
        return state

    def drop_rows_after(self, last: int) -> None:
        """Cut metrics, sites and traffic back to the last whole round.

        Line by line: of 10,000 rounds they need not fit in memory.
        """

        def of_json(line: bytes) -> bool:
            row = _row(line)
            return row is not None and row["round"] <= last

        def of_traffic(line: bytes) -> bool:
            first = line.partition(b",")[0]
            return first == COLUMNS[0].encode() or (first.isdigit() and int(first) <= last)

        for name, stays in (
            (METRICS_FILE, of_json),
            (SITES_FILE, of_json),
            (TRAFFIC_FILE, of_traffic),
        ):
            self._cut(name, stays)

    def write(self, name: str, text: str) -> None:
        """Write a file whole. Raises StoreError where the disk refuses."""
        write_atomic(self.path / name, text.encode(), durable=True)

    def read_json(self, name: str) -> Row | None:
        """Return a file's object, None where there is none. Raises RunError, StoreError."""
        path = self.path / name
        try:
            value = read_json(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StoreError(f"{path}: cannot be read ({error.strerror}): make it so") from error
        except ValueError as error:
            raise RunError(damaged_file(path, str(error))) from error
        if not isinstance(value, dict):
            raise RunError(damaged_file(path, "is no JSON object"))
        return value

    def _cut(self, name: str, stays: Callable[[bytes], bool]) -> None:
        """Cut a file's end off, from the first line on that is not whole or does not stay."""
        path, end = self.path / name, 0
        try:
            with path.open("rb") as file:
                for line in file:
                    if not (line.endswith(b"\n") and stays(line)):
                        break
                    end += len(line)
        except FileNotFoundError:
            return
        truncate_durable(path, end)


def _as_preset(plain_config: Mapping[str, Any]) -> str:
    """Return the settings as a preset; a run of it is a new one, so it has no run folder's name."""
    runtime = {**plain_config.get("runtime", {}), "run_name": "", "resume": False}
    plain = json_values({**plain_config, "runtime": runtime})
    text: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    return text


def apply_change(before: Row, change: Row) -> Row:
    """Return the state after a line of changes (`RunFolder.append_changes`).

    Raises ValueError where the line is not of the next round.
    """
    if change["round"] != before["round"] + 1:
        raise ValueError(f"round {change['round']} does not follow on {before['round']}")
    for table in change.pop(CHANGED_TABLES):
        *above, name = table.split(".")
        earlier, inside = before, change
        for key in above:
            earlier, inside = earlier[key], inside[key]
        inside[name] = {**earlier[name], **inside[name]}
    return change


def damaged_file(path: Path, what: str) -> str:
    """Say that a file is damaged, and what can be done."""
    return f"{path}: damaged ({what}): restore it from a copy, or start a new run"


def pretty_json(value: Mapping[str, Any]) -> str:
    """Return the value as JSON for people."""
    return json.dumps(json_values(value), indent=2, allow_nan=False) + "\n"


def json_values(value: Any) -> Any:
    """Return the value as JSON has it; NaN and infinity become null."""
    if isinstance(value, Mapping):
        return {str(key): json_values(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_values(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _row(line: bytes) -> Row | None:
    """Return the row of a line; None where it was cut or is damaged."""
    try:
        row = parse_json(line)
    except ValueError:
        return None
    whole = line.endswith(b"\n") and isinstance(row, dict) and isinstance(row.get("round"), int)
    return row if whole else None


def _compact(value: Mapping[str, Any]) -> str:
    return to_json(value).decode()


def _line(row: Row) -> str:
    return json.dumps(json_values(row), allow_nan=False) + "\n"


def _field(text: str) -> int | float | str | None:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text or None


# --- where run folders are, and what they are called ----------------------------------------------


def check_name(name: str, said: str = "runtime.run_name =") -> None:
    """Check a run's name, which its folder has everywhere; said: by what. Raises RunError."""
    if not RUN_NAME_PATTERN.fullmatch(name):
        raise RunError(
            f"{said} {name!r}: must be letters, digits, dot, dash and underscore, "
            "at most 120, the first a letter or digit"
        )
    if name.casefold() == RESERVED_NAME:
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
        return (folder / IDENTITY_FILE).read_text()
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
        raise write_error(
            path, error, setting=f"{OUT_SETTINGS}, or the node's store-path"
        ) from error
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
            (part / IDENTITY_FILE).write_text(identity)
        part.rename(path)
    except OSError:
        shutil.rmtree(part, ignore_errors=True)
        if not path.exists():  # else: another process was faster
            raise
    return identity_of(path) == identity


def out_root(experiment: "Experiment") -> Path:
    """Return the folder of run folders: `runtime.out`, else $FEDAPP_OUT, else ~/fedapp-runs."""
    return Path(experiment.runtime.out).expanduser() if experiment.runtime.out else runs_root()


def runs_root() -> Path:
    """Return the folder of run folders that no setting names."""
    return Path(os.environ.get("FEDAPP_OUT") or "~/fedapp-runs").expanduser()


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
                raise write_error(path, error, setting=OUT_SETTINGS) from error
            if name:
                raise RunError(name_taken(path)) from None
            tried += 1
        except OSError as error:
            raise write_error(path, error, setting=OUT_SETTINGS) from error


def default_name(plain_config: Mapping[str, Any], started: datetime) -> str:
    """Return the name of a run that was given none."""
    preset = re.sub(r"[^A-Za-z0-9_-]+", "-", str(plain_config["name"])).strip("-_")[:80] or "run"
    return f"{preset}-s{plain_config['seed']}-{started:%Y%m%d-%H%M%S}"


def name_taken(path: Path) -> str:
    """Say that a run has this folder, and what can be done."""
    return (
        f"{path}: there is such a run; choose another runtime.run_name, or continue it with "
        "runtime.resume=true"
    )


def newest_run(root: Path) -> str:
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
    hint = f"did you mean '{close[0]}'?" if close else newest_run(root)
    raise RunError(f"'{named}': no such run in {root}, and no such folder; {hint}")


def _by_age(root: Path, *marks: str) -> list[str]:
    """Return the names of the folders that hold one of these files, the oldest file first."""
    found = [path for mark in marks for path in root.glob(f"*/{mark}")]
    return [path.parent.name for path in sorted(found, key=lambda path: path.stat().st_mtime)]


# --- whether a run goes on ------------------------------------------------------------------------


def is_running(folder: Path) -> bool:
    """Whether a process of this machine carries on the run, or the comparison, of a folder."""
    return any(_held(folder / name) for name in (SERVER_LOCK, COMPARISON_LOCK))


def _held(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            # Shared and let go of at once: it keeps no other watcher out, and no server for long.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError as error:
        raise write_error(path, error) from error
    return False


@contextmanager
def locked(lock: Path, busy: str) -> Iterator[None]:
    """Hold a file locked, in a folder that is made where it is not there.

    The kernel lets go of it when the process ends, however it ends. Raises RunError, which says
    `busy`, where another process holds it, and StoreError.
    """
    kept = FileLock(lock)
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        kept.acquire(timeout=LOCK_TIMEOUT_S)
    except Timeout as error:
        raise RunError(busy) from error
    except OSError as error:
        raise write_error(lock, error) from error
    try:
        yield
    finally:
        kept.release()
