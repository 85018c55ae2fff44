"""A run's folder: what was asked for, what came out, and what is needed to go on.

- config.yaml: the settings, resolved
- run.json: versions, code, digests of settings and manifest, start
- manifest.safetensors: who holds which image, where the server knows it
- metrics.jsonl: one JSON object per round, appended
- traffic.csv: models and bytes by round, site, direction and kind, appended
- per_site.csv: one row per site, at the end
- summary.json: the result, at the end
- checkpoint.json: state after the last whole round
- pool/, sites/: models, and the simulated sites' own stores
- server.lock: held by the server that carries on the run
"""

import csv
import importlib.metadata
import io
import json
import logging
import math
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from shutil import rmtree
from typing import Any, Protocol, Self

import yaml
from filelock import FileLock, Timeout

from fedapp.experiment.codehash import code_hash
from fedapp.experiment.config import MACHINE_KEYS, experiment_digest, to_plain
from fedapp.ground.disk import append_durable, refused, write_atomic
from fedapp.ground.errors import FedAppError, RunError, StoreError
from fedapp.ground.settings import Experiment
from fedapp.messages.ledger import COLUMNS

log = logging.getLogger(__name__)

Row = dict[str, Any]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")
_PACKAGES = ("torch", "torchvision", "numpy", "flwr", "um-pfssl")


class Savable(Protocol):
    """What a run folder asks of a manifest."""

    def save(self, path: Path | str) -> None:
        """Write it."""

    def digest(self) -> str:
        """Return the SHA-256 of its content, in hex."""


class RunFolder:
    """The folder of one run; `create` or `open` it."""

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

    @classmethod
    def create(
        cls,
        root: Path,
        name: str,
        plain_config: Mapping[str, Any],
        manifest: Savable | None,
        digest: str,
    ) -> Self:
        """Make a new folder and note down what runs.

        name: of the folder; empty: preset, seed and start time, made unique. digest: of the
        settings (`config.experiment_digest`), by which `open` knows the experiment again.

        Raises RunError where the name is no folder name or is taken, StoreError where the disk
        refuses; then no folder stays.
        """
        if name and not _NAME.fullmatch(name):
            raise RunError(
                f"runtime.run_name = {name!r}: must be letters, digits, dot, dash and underscore, "
                "at most 120, the first a letter or digit"
            )
        started = datetime.now().astimezone()
        folder = cls(_make(root, name, _default_name(plain_config, started)))
        facts = {
            "experiment": digest,
            "manifest": manifest.digest() if manifest else None,
            "code": code_hash()[1],
            "versions": versions(),
            "started": started.isoformat(timespec="seconds"),
        }
        try:
            text = yaml.safe_dump(_json_values(plain_config), sort_keys=False, allow_unicode=True)
            folder._write("config.yaml", text)
            if manifest:
                manifest.save(folder.path / "manifest.safetensors")
            folder._write("run.json", _pretty(facts))
        except FedAppError:
            rmtree(folder.path, ignore_errors=True)
            raise
        return folder

    @classmethod
    def open(
        cls, path: Path, plain_config: Mapping[str, Any], manifest: Savable | None, digest: str
    ) -> Self:
        """Open a folder to continue its run; metrics of rounds after the checkpoint are dropped.

        Raises RunError where there is no such run, or where it is of another experiment: other
        settings (naming them) or other images.
        """
        folder = cls(path)
        facts = folder._read_json("run.json")
        if facts is None:
            raise RunError(
                f"{path}: no run to resume; name one with runtime.run_name and its folder with "
                "runtime.out, or start anew with runtime.resume=false"
            )
        if facts.get("experiment") != digest:
            raise RunError(
                f"{path}: a run with other settings ({folder._differences(plain_config)}); give "
                "the settings in its config.yaml, or start anew under another runtime.run_name"
            )
        if manifest and facts.get("manifest") not in {None, manifest.digest()}:
            raise RunError(
                f"{path}: a run on other images or another split than data.root holds now; restore "
                "the data, or start anew with runtime.resume=false"
            )
        if facts.get("code") != code_hash()[1]:
            log.warning(
                "%s was started with code %s and continues with %s: its rounds may not be alike",
                path,
                facts.get("code"),
                code_hash()[1],
            )
        folder._warn_of_other_bits(plain_config)
        folder._drop_rows_after((folder.load_checkpoint() or {"round": -1})["round"])
        return folder

    def discard_unless_begun(self) -> None:
        """Remove the folder of a run that ended before its first checkpoint: it holds nothing."""
        if not (self.path / "checkpoint.json").exists():
            rmtree(self.path, ignore_errors=True)

    def going_on(self) -> str:
        """Return what to do to go on with a run that stopped, once its cause is mended."""
        if not (self.path / "checkpoint.json").exists():
            return "start again"
        return f"go on with runtime.resume=true runtime.run_name={self.path.name}"

    def append_metrics(self, row: Row) -> None:
        """Add a round's row (it has "round"). NaN and infinity become null: JSON has neither.

        Raises StoreError where the disk refuses; the file then is as before.
        """
        line = json.dumps(_json_values(row), allow_nan=False) + "\n"
        append_durable(self.path / "metrics.jsonl", line.encode())

    def append_traffic(self, rows: Sequence[Sequence[int | str]]) -> None:
        """Add a round's rows of the ledger to traffic.csv. Raises StoreError as above."""
        path = self.path / "traffic.csv"
        head = () if path.exists() else (COLUMNS,)
        lines = (",".join(map(str, row)) + "\n" for row in (*head, *rows))
        append_durable(path, "".join(lines).encode())

    def metrics(self) -> list[Row]:
        """Return the rows of whole lines; a line cut by a crash, and what follows, is left out."""
        try:
            lines = (self.path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        rows: list[Row] = []
        for line in lines:
            try:
                row = json.loads(line)
            except ValueError:
                break
            if not (line.endswith(b"\n") and isinstance(row, dict)):
                break
            rows.append(row)
        return rows

    def write_per_site(self, rows: Sequence[Row]) -> None:
        """Write per_site.csv; columns as they first come up, None as an empty field."""
        self._write("per_site.csv", _csv(rows, "site"))

    def write_evaluations(self, evaluations: Mapping[str, Any]) -> None:
        """Write evaluations.json: each site's latest confusion matrix and calibration sums."""
        self._write("evaluations.json", json.dumps(evaluations, separators=(",", ":")) + "\n")

    def note_manifest(self, digest: str) -> None:
        """Note in run.json which split the sites hold, where the server itself does not know."""
        facts = self._read_json("run.json") or {}
        if facts.get("manifest") is None:
            self._write("run.json", _pretty({**facts, "manifest": digest}))

    def per_site(self) -> list[Row]:
        """Return the rows of per_site.csv with numbers as numbers and empty fields as None."""
        try:
            text = (self.path / "per_site.csv").read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        return [{k: _field(v) for k, v in row.items()} for row in csv.DictReader(text.splitlines())]

    def write_summary(self, summary: Row) -> None:
        """Write summary.json. NaN and infinity become null."""
        self._write("summary.json", _pretty(summary))

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        """Write the state after a whole round; it has "round", the last row of the metrics.

        Raises StoreError where the disk refuses; the previous checkpoint then stays.
        """
        assert "round" in state
        self._write("checkpoint.json", json.dumps(state, separators=(",", ":")))

    def load_checkpoint(self) -> Row | None:
        """Return the state last saved, or None. Raises RunError where the file is damaged."""
        state = self._read_json("checkpoint.json")
        if state is not None and not isinstance(state.get("round"), int):
            raise RunError(_damaged(self.path / "checkpoint.json", "has no round"))
        return state

    def _write(self, name: str, text: str) -> None:
        write_atomic(self.path / name, text.encode(), durable=True)

    def _read_json(self, name: str) -> Row | None:
        path = self.path / name
        try:
            value = json.loads(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StoreError(f"{path}: cannot be read ({error.strerror}): make it so") from error
        except ValueError as error:
            raise RunError(_damaged(path, str(error))) from error
        if not isinstance(value, dict):
            raise RunError(_damaged(path, "is no JSON object"))
        return value

    def _differences(self, plain_config: Mapping[str, Any]) -> str:
        """Name the settings that differ from those of the folder, three at most."""
        try:
            old = _flat(yaml.safe_load((self.path / "config.yaml").read_bytes()))
        except (OSError, yaml.YAMLError, AttributeError):
            return "its config.yaml cannot be read"
        new = _flat(_json_values(plain_config))
        found = [
            f"{key} {old.get(key)!r}, now {new.get(key)!r}"
            for key in sorted(old.keys() | new.keys())
            if old.get(key) != new.get(key)
            and key not in MACHINE_KEYS
            and key.partition(".")[0] not in MACHINE_KEYS
        ]
        more = [f"{len(found) - 3} more"] if len(found) > 3 else []
        return "; ".join(found[:3] + more) or "by another version of this software"

    def _warn_of_other_bits(self, plain_config: Mapping[str, Any]) -> None:
        old = _flat(yaml.safe_load((self.path / "config.yaml").read_bytes()))
        new = _flat(_json_values(plain_config))
        for key in ("runtime.device", "runtime.threads", "runtime.precision"):
            if old.get(key) != new.get(key):
                log.warning(
                    "%s was %s, now %s: the last bits of its rounds may differ",
                    key,
                    old.get(key),
                    new.get(key),
                )

    def _drop_rows_after(self, last: int) -> None:
        """Cut metrics and traffic back to the last whole round."""
        kept = [row for row in self.metrics() if row.get("round", math.inf) <= last]
        self._rewrite("metrics.jsonl", "".join(json.dumps(row) + "\n" for row in kept))
        path = self.path / "traffic.csv"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        whole = (line for line in lines[1:] if line.endswith("\n") and line[:1].isdigit())
        upto = [line for line in whole if int(line.split(",")[0]) <= last]
        self._rewrite("traffic.csv", "".join(lines[:1] + upto))

    def _rewrite(self, name: str, text: str) -> None:
        path = self.path / name
        if path.exists() and path.read_text() != text:
            write_atomic(path, text.encode(), durable=True)


def open_run(experiment: Experiment, manifest: Savable | None = None) -> RunFolder:
    """Return the folder that `experiment.runtime` asks for: a new one, or one to resume.

    Raises RunError and StoreError as `RunFolder.create` and `open` do.
    """
    runtime, root = experiment.runtime, out_root(experiment)
    plain, digest = to_plain(experiment), experiment_digest(experiment)
    if not runtime.resume:
        return RunFolder.create(root, runtime.run_name, plain, manifest, digest)
    if not runtime.run_name:
        raise RunError(
            f"runtime.resume needs runtime.run_name, the run's folder in {root}; {_newest(root)}"
        )
    return RunFolder.open(root / runtime.run_name, plain, manifest, digest)


@contextmanager
def sole_server(experiment: Experiment) -> Iterator[RunFolder]:
    """Hold the folder that `open_run` returns: no second server carries on the same run meanwhile.

    One may be thought dead and be at work: where the SuperLink was down, or a site's link. The
    kernel lets go of the folder when the process ends, however it ends. Raises RunError where
    another process has it, and what `open_run` raises.
    """
    # One that is resumed is held before it is opened: that cuts its records back.
    first = out_root(experiment) / experiment.runtime.run_name
    early = experiment.runtime.resume and (first / "run.json").exists()
    path = first if early else (folder := open_run(experiment)).path
    lock = FileLock(path / "server.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise RunError(
            f"{path}: its run is still going on (flwr list); let it end, or end it (flwr stop), "
            "and then resume it"
        ) from error
    except OSError as error:
        raise refused(path / "server.lock", error) from error
    try:
        yield open_run(experiment) if early else folder
    finally:
        lock.release()


def check_run(experiment: Experiment) -> None:
    """Check early what `open_run` would refuse: no run to resume, another one, or a name taken."""
    runtime, root = experiment.runtime, out_root(experiment)
    if runtime.resume:
        open_run(experiment)
    elif runtime.run_name and (root / runtime.run_name).exists():
        raise RunError(_taken(root / runtime.run_name))


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


def versions() -> dict[str, str]:
    """Return what a result may depend on; nothing in it names the machine or its owner."""
    # Not platform.platform(): a kernel's release often carries its owner's name.
    system = (platform.system(), platform.machine(), *platform.libc_ver())
    found = {"python": platform.python_version(), "platform": " ".join(filter(None, system))}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _default_name(plain_config: Mapping[str, Any], started: datetime) -> str:
    preset = re.sub(r"[^A-Za-z0-9_-]+", "-", str(plain_config["name"])).strip("-_")[:80] or "run"
    return f"{preset}-s{plain_config['seed']}-{started:%Y%m%d-%H%M%S}"


def _make(root: Path, name: str, default: str) -> Path:
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
                raise RunError(_taken(path)) from None
            tried += 1
        except OSError as error:
            raise refused(path, error) from error


def _taken(path: Path) -> str:
    return (
        f"{path}: there is such a run; choose another runtime.run_name, or continue it with "
        "runtime.resume=true"
    )


def _newest(root: Path) -> str:
    """Name the run that was started last."""
    runs = sorted(root.glob("*/run.json"), key=lambda path: path.stat().st_mtime)
    return f"the newest is {runs[-1].parent.name}" if runs else "there are none yet"


def _damaged(path: Path, what: str) -> str:
    return f"{path}: damaged ({what}): restore it from a copy, or start a new run"


def _pretty(value: Mapping[str, Any]) -> str:
    return json.dumps(_json_values(value), indent=2, allow_nan=False) + "\n"


def _json_values(value: Any) -> Any:
    """Return the value with mappings, lists and scalars as JSON has them."""
    if isinstance(value, Mapping):
        return {str(key): _json_values(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_json_values(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _flat(plain: Mapping[str, Any]) -> Row:
    """Return dotted keys, one group deep."""
    flat: Row = {}
    for key, value in plain.items():
        inner = value if isinstance(value, dict) else {"": value}
        flat |= {f"{key}.{name}".rstrip("."): item for name, item in inner.items()}
    return flat


def _csv(rows: Sequence[Row], first: str) -> str:
    columns = list(dict.fromkeys(key for row in rows for key in row)) or [first]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _field(text: str) -> int | float | str | None:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text or None
