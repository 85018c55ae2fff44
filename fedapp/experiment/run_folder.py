"""The folder of a run: its place, its name, its files, and whether its run is still going on.

Written when the run begins:

- config.yaml: all settings. It is a preset that repeats the run, in a folder of its own
- run.json: versions, code, digests of the settings and of the manifest, time of the start
- run.id: distinguishes this run from every other run of the same name (`folder_of`)
- manifest.safetensors: which site holds which image, where the server knows it

Appended after every round:

- metrics.jsonl: one JSON object per round
- sites.jsonl: one JSON object per round, with what each site that answered reported of itself
- traffic.csv: models and bytes by round, site, direction and kind
- changes.jsonl: one JSON object per round since checkpoint.json; removed when the run has ended

Replaced now and then, or written at the end:

- checkpoint.json: the state after a completed round
- per_site.csv: one row per site
- evaluations.json: each site's latest confusion matrix and calibration sums
- summary.json: the result

Folders and the lock:

- pool/, sites/: models, and the stores of simulated sites
- models/: the models for use of simulated sites
- server.lock: held by the server of the run

Nothing here imports torch, so that shell completion and `fedapp watch` cost little beside a run.
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

if TYPE_CHECKING:  # this module imports torch
    from fedapp.experiment.experiment import Experiment

Row = dict[str, Any]

METRICS_FILE, SITES_FILE, TRAFFIC_FILE = "metrics.jsonl", "sites.jsonl", "traffic.csv"
CHECKPOINT_FILE, CHANGES_FILE = "checkpoint.json", "changes.jsonl"
CHANGED_TABLES = "tables"
"""Key in a line of changes.jsonl: which mappings it has in part, only the entries that changed."""
RUN_NAME_PATTERN = re.compile(RUN_NAME)
RESERVED_NAME = "models"
"""Not allowed as the name of a run: a site keeps its models in a folder of this name."""
OUT_SETTINGS = "FEDAPP_OUT or runtime.out"
"""The settings that decide where run folders are, for error messages."""
IDENTITY_FILE = "run.id"
"""File with the identity of the folder's run: 64 random hex digits, drawn when the run begins."""
SERVER_LOCK, COMPARISON_LOCK = "server.lock", ".lock"
"""Lock files: in the folder of a run, held by its server; in that of a comparison, held by the
process that carries it out."""
LOCK_TIMEOUT_S = 1.0
"""How long to wait for a lock: `is_running` holds it for a moment too."""


class Savable(Protocol):
    """What a run folder needs of a manifest, which is made in `data.split`."""

    def save(self, path: Path | str) -> None:
        """Write the manifest to a file."""

    def digest(self) -> str:
        """Return the SHA-256 of its content, in hex."""


class RunFolder:
    """The folder of one run, at `path`; writes and reads its files.

    `create` makes a new one; `resume.open_run` makes or opens the one that an experiment asks for.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def pool_root(self) -> Path:
        """Folder of the server's model pool."""
        return self.path / "pool"

    @property
    def sites_root(self) -> Path:
        """Folder of the stores of simulated sites."""
        return self.path / "sites"

    @property
    def models_root(self) -> Path:
        """Folder of the models for use of simulated sites."""
        return self.path / "models"

    @property
    def models_elsewhere(self) -> str:
        """Where the sites' models are if nothing of a simulated site is here; empty if it is."""
        simulated = self.sites_root, self.models_root, self.path / "manifest.safetensors"
        if any(path.exists() for path in simulated):
            return ""
        return "each site keeps its own model: at the site, fedapp site FOLDER (its FEDAPP_SITES)"

    @property
    def identity(self) -> str:
        """The identity of the run (`IDENTITY_FILE`); empty for a run of an earlier version."""
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
        """Make the folder of a new run, with the files that describe the run.

        name: of the folder; empty: made of preset, seed and start time, and unique. manifest: the
        split; None: the server does not know it. digest: of the settings
        (`config.experiment_digest`), by which `resume` recognises the experiment. identity: the one
        that a coordinator signed; empty: a new one is drawn.

        Raises RunError where the name is not allowed or is taken, and StoreError where the disk
        refuses; no folder is left behind then.
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
        """Remove the folder of a run that failed before its first checkpoint: nothing is lost."""
        if not (self.path / "checkpoint.json").exists():
            shutil.rmtree(self.path, ignore_errors=True)

    def going_on(self) -> str:
        """Return what the user must do to continue the run once the cause of its end is fixed."""
        if not (self.path / "checkpoint.json").exists():
            return "start again"
        return f"continue with runtime.resume=true runtime.run_name={self.path.name}"

    def note_manifest(self, digest: str) -> None:
        """Write the digest of the sites' split into run.json, unless the server knew the split."""
        facts = self.read_json("run.json") or {}
        if facts.get("manifest") is None:
            self.write("run.json", pretty_json({**facts, "manifest": digest}))

    def append_metrics(self, row: Row) -> None:
        """Append the row of a round, which has the key "round". NaN and infinity become null.

        Raises StoreError where the disk refuses; the file is then as it was.
        """
        self._append(METRICS_FILE, row)

    def append_sites(self, row: Row) -> None:
        """Append the row of a round to sites.jsonl, as `append_metrics` does."""
        self._append(SITES_FILE, row)

    def append_traffic(self, rows: Sequence[Sequence[int | str]]) -> None:
        """Append the ledger's rows of a round to traffic.csv. Raises StoreError likewise."""
        path = self.path / TRAFFIC_FILE
        begun = path.exists() and path.stat().st_size  # empty where the disk refused the first rows
        head = () if begun else (COLUMNS,)
        lines = (",".join(map(str, row)) + "\n" for row in (*head, *rows))
        append_durable(path, "".join(lines).encode())

    def metrics(self) -> list[Row]:
        """Return the rows of metrics.jsonl, each with the key "round".

        The first line that is incomplete or damaged ends the list, as after a crash.
        """
        return self._rows(METRICS_FILE)

    def sites(self) -> list[Row]:
        """Return the rows of sites.jsonl likewise; [] where an earlier version wrote none."""
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
        """Write per_site.csv. Columns are ordered like the rows' keys; None is an empty field."""
        columns = list(dict.fromkeys(key for row in rows for key in row)) or ["site"]
        values = ([row.get(column) for column in columns] for row in rows)
        self.write("per_site.csv", csv_text([columns, *values]))

    def per_site(self) -> list[Row]:
        """Return the rows of per_site.csv: numbers as int or float, empty fields as None."""
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
        """Write the state after a completed round; return its size in bytes.

        state: values that JSON can hold, and dataclasses of such values; its key "round" is that of
        the last row of the metrics. Raises StoreError where the disk refuses; the state that was
        saved before is then still there.
        """
        assert "round" in state
        text = _compact(state)
        self.write(CHECKPOINT_FILE, text)
        (self.path / CHANGES_FILE).unlink(
            missing_ok=True
        )  # else: of rounds before it, not read again
        return len(text)

    def append_changes(self, state: Mapping[str, Any], tables: Sequence[str]) -> int:
        """Append the state after a completed round to changes.jsonl; return its size in bytes.

        tables: mappings in `state` that have only the entries that changed since the last round, as
        dotted keys. Raises StoreError as `save_checkpoint` does.
        """
        line = _compact({**state, CHANGED_TABLES: tables}) + "\n"
        append_durable(self.path / CHANGES_FILE, line.encode())
        return len(line)

    def load_checkpoint(self) -> Row | None:
        """Return the state that was saved last, or None. Raises RunError where a file is damaged.

        An incomplete last line of changes.jsonl is ignored: its round was not completed.
        """
        path = self.path / CHANGES_FILE
        try:  # read first: a whole state that is written meanwhile then replaces both
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
        """Cut metrics.jsonl, sites.jsonl and traffic.csv back to the last completed round.

        The files are read line by line: those of 10,000 rounds need not fit in memory.
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
        """Write a file atomically. Raises StoreError where the disk refuses."""
        write_atomic(self.path / name, text.encode(), durable=True)

    def read_json(self, name: str) -> Row | None:
        """Return the object in a JSON file; None where there is no file.

        Raises RunError where the file is damaged, and StoreError where it cannot be read.
        """
        path = self.path / name
        try:
            value = read_json(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StoreError(f"{path}: cannot be read ({error.strerror}): fix that") from error
        except ValueError as error:
            raise RunError(damaged_file(path, str(error))) from error
        if not isinstance(value, dict):
            raise RunError(damaged_file(path, "is no JSON object"))
        return value

    def _cut(self, name: str, stays: Callable[[bytes], bool]) -> None:
        """Truncate a file before the first line that is incomplete or that `stays` rejects."""
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
    """Return the settings as a preset, without the run's name: its run is a new one."""
    runtime = {**plain_config.get("runtime", {}), "run_name": "", "resume": False}
    plain = json_values({**plain_config, "runtime": runtime})
    text: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    return text


def apply_change(before: Row, change: Row) -> Row:
    """Return the state after a line of changes.jsonl (`RunFolder.append_changes`).

    before: the state before. Raises ValueError where the line is not of the next round.
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
    """Return the error text for a damaged file."""
    return f"{path}: damaged ({what}): restore it from a copy, or start a new run"


def pretty_json(value: Mapping[str, Any]) -> str:
    """Return the value as indented JSON."""
    return json.dumps(json_values(value), indent=2, allow_nan=False) + "\n"


def json_values(value: Any) -> Any:
    """Return the value in types that JSON has; NaN and infinity become None."""
    if isinstance(value, Mapping):
        return {str(key): json_values(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_values(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _row(line: bytes) -> Row | None:
    """Return the row of a line; None where it is incomplete or damaged."""
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


# --- names and places of run folders --------------------------------------------------------------


def check_name(name: str, source: str = "runtime.run_name =") -> None:
    """Check the name of a run, which is the name of its folder on every machine.

    source: where the name comes from, for the message. Raises RunError where it is not allowed.
    """
    if not RUN_NAME_PATTERN.fullmatch(name):
        raise RunError(
            f"{source} {name!r}: must be letters, digits, dot, dash and underscore, "
            "at most 120, the first a letter or digit"
        )
    if name.casefold() == RESERVED_NAME:
        raise RunError(
            f"{source} {name!r}: sites keep the models of all runs in a folder of that "
            "name: choose another"
        )


def new_identity() -> str:
    """Return a new identity (`IDENTITY_FILE`)."""
    return secrets.token_hex(32)


def identity_of(folder: Path) -> str:
    """Return the identity of the run in a folder; empty for a run of an earlier version."""
    try:
        return (folder / IDENTITY_FILE).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def folder_of(root: Path, name: str, identity: str) -> Path:
    """Return the folder of a run at a site, which is made if it is not there.

    The folder of another run of the same name (from another server, with other settings, or begun
    anew) stays as it is. This run's folder is then name~2, name~3, ...; no run can have such a
    name. Raises RunError where the name is not allowed, and StoreError where the disk refuses.
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
    """Return whether a folder is that of the run; if there is none, make it.

    A new folder gets its name only with its identity inside, so that two processes never share it.
    """
    if path.exists():
        return identity_of(path) == identity
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY}")
    part.mkdir(mode=0o700)  # it will hold models, from which images may be inferred
    try:
        if identity:
            (part / IDENTITY_FILE).write_text(identity)
        part.rename(path)
    except OSError:
        shutil.rmtree(part, ignore_errors=True)
        if not path.exists():  # otherwise another process was faster
            raise
    return identity_of(path) == identity


def out_root(experiment: "Experiment") -> Path:
    """Return the folder of run folders: `runtime.out`, or $FEDAPP_OUT, or ~/fedapp-runs."""
    return Path(experiment.runtime.out).expanduser() if experiment.runtime.out else runs_root()


def runs_root() -> Path:
    """Return the folder of run folders where `runtime.out` is not set."""
    return Path(os.environ.get("FEDAPP_OUT") or "~/fedapp-runs").expanduser()


def make_folder(root: Path, name: str, default: str) -> Path:
    """Make a new folder in `root` and return it.

    name: of the folder; empty: `default`, with a number behind it where that is taken. Raises
    RunError where `name` is taken, and StoreError where the disk refuses.
    """
    tried = 1
    while True:
        path = root / (name or (default if tried == 1 else f"{default}-{tried}"))
        try:
            root.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o700)  # it will hold models, from which images may be inferred
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
    """Return the default name of a run: preset, seed and start time."""
    preset = re.sub(r"[^A-Za-z0-9_-]+", "-", str(plain_config["name"])).strip("-_")[:80] or "run"
    return f"{preset}-s{plain_config['seed']}-{started:%Y%m%d-%H%M%S}"


def name_taken(path: Path) -> str:
    """Return the error text for a folder that another run has."""
    return (
        f"{path}: there is such a run; choose another runtime.run_name, or continue it with "
        "runtime.resume=true"
    )


def newest_run(root: Path) -> str:
    """Return a hint that names the run that was started last."""
    names = _by_age(root, "run.json")
    return f"the newest is {names[-1]}" if names else "there are none yet"


def run_names(root: Path) -> list[str]:
    """Return the names of the runs and comparisons in a folder of run folders, the oldest first."""
    return _by_age(root, "run.json", "comparison.json")


def find_run(named: str) -> Path:
    """Return the folder of a run or a comparison, by its name in `runs_root` or by its path.

    named: empty: the newest run. A text that begins with a dot is always a path, since no name
    begins with one. The content of the folder is not checked. Raises RunError where there is no
    such folder.
    """
    root = runs_root()
    if not named:
        names = _by_age(root, "run.json")
        if not names:
            raise RunError(f"{root}: no runs yet: begin one (fedapp run), or name a run's folder")
        return root / names[-1]
    path = Path(named).expanduser()
    # "." is the working directory, and not `runs_root` itself.
    for found in (path,) if named.startswith(".") else (root / named, path):
        if found.is_dir():
            return found
    close = difflib.get_close_matches(named, run_names(root), n=1)
    hint = f"did you mean '{close[0]}'?" if close else newest_run(root)
    raise RunError(f"'{named}': no such run in {root}, and no such folder; {hint}")


def _by_age(root: Path, *marks: str) -> list[str]:
    """Return the names of the folders with one of the files `marks`, the oldest file first."""
    found = [path for mark in marks for path in root.glob(f"*/{mark}")]
    return [path.parent.name for path in sorted(found, key=lambda path: path.stat().st_mtime)]


# --- whether a run is going on --------------------------------------------------------------------


def is_running(folder: Path) -> bool:
    """Return whether a process of this machine works on the run or comparison of a folder."""
    return any(_held(folder / name) for name in (SERVER_LOCK, COMPARISON_LOCK))


def _held(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            # A shared lock, released at once: other watchers get it too, and a server soon.
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
    """Hold a lock file; its folder is made if it is not there.

    The kernel releases the lock when the process ends, however it ends. Raises RunError with the
    text `busy` where another process holds it, and StoreError where the disk refuses.
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
