"""A run's folder: what was asked for, what came out, and what is needed to go on.

- config.yaml: the settings, resolved; a preset that runs the same again, in a folder of its own
- run.json: versions, code, digests of settings and manifest, start
- run.id: tells this run from every other of its name (`runpaths.folder_of`)
- manifest.safetensors: who holds which image, where the server knows it
- what `records` writes, round by round and at the end
- pool/, sites/: models, and the simulated sites' own stores
- models/: the simulated sites' models for use
- server.lock: held by the server that carries on the run
"""

import logging
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from shutil import rmtree
from typing import Any, Protocol, Self

import yaml

from fedapp.experiment.codehash import code_hash, versions
from fedapp.experiment.config import experiment_digest, to_plain
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.records import Records, json_values, pretty
from fedapp.experiment.resume import (
    differences,
    digests_of,
    is_longer,
    note_rounds,
    warn_of_other_bits,
)
from fedapp.experiment.runpaths import (
    IDENTITY,
    check_name,
    default_name,
    identity_of,
    make_folder,
    new_identity,
    newest,
    out_root,
    taken,
)
from fedapp.ground.disk import remove_stale
from fedapp.ground.errors import FedAppError, RunError

log = logging.getLogger(__name__)


class Savable(Protocol):
    """What a run folder asks of a manifest."""

    def save(self, path: Path | str) -> None:
        """Write it."""

    def digest(self) -> str:
        """Return the SHA-256 of its content, in hex."""


class RunFolder(Records):
    """The folder of one run; `create` or `open` it."""

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
        settings (`config.experiment_digest`), by which `open` knows the experiment again. identity:
        as the run was signed with; empty: one is drawn.

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
            folder.write(IDENTITY, identity or new_identity())
            folder.write("config.yaml", _as_preset(plain_config))
            if manifest:
                manifest.save(folder.path / "manifest.safetensors")
            folder.write("run.json", pretty(facts))
        except FedAppError:
            rmtree(folder.path, ignore_errors=True)
            raise
        return folder

    @classmethod
    def open(
        cls, path: Path, plain_config: Mapping[str, Any], manifest: Savable | None, digest: str
    ) -> Self:
        """Open a folder to continue its run; metrics of rounds after the checkpoint are dropped.

        Nobody else may be at work there (`runlock.sole_server`). `rounds.num_rounds` may be larger
        than it was: the folder then is of that longer run. Raises as `resumable`.
        """
        folder = cls.resumable(path, plain_config, manifest, digest)
        facts = folder.read_json("run.json") or {}
        if facts.get("code") != code_hash()[1]:
            log.warning(
                "%s was started with code %s and continues with %s: its rounds may not be alike",
                path,
                facts.get("code"),
                code_hash()[1],
            )
        warn_of_other_bits(path, plain_config)
        if facts.get("experiment") != digest:  # longer
            folder.write("run.json", pretty({**facts, "experiment": digest}))
        note_rounds(folder, plain_config)
        folder.drop_rows_after((folder.load_checkpoint() or {"round": -1})["round"])
        remove_stale(folder.path)
        return folder

    @classmethod
    def resumable(
        cls, path: Path, plain_config: Mapping[str, Any], manifest: Savable | None, digest: str
    ) -> Self:
        """Return the folder of a run that can be continued, having changed nothing in it.

        Raises RunError where there is no such run, where its checkpoint is damaged, or where it is
        of another experiment: other settings (naming them), fewer rounds or other images.
        """
        folder = cls(path)
        facts = folder.read_json("run.json")
        if facts is None:
            raise RunError(
                f"{path}: no run to resume; name one with runtime.run_name and its folder with "
                "runtime.out, or start anew with runtime.resume=false"
            )
        before = digests_of(path, str(facts.get("experiment")))
        if digest not in before and not is_longer(path, plain_config, before):
            what = differences(path, plain_config) or "by another version of this software"
            raise RunError(
                f"{path}: a run with other settings ({what}); give "
                "the settings in its config.yaml, or start anew under another runtime.run_name"
            )
        if manifest and facts.get("manifest") not in {None, manifest.digest()}:
            raise RunError(
                f"{path}: a run on other images or another split than data.root holds now; restore "
                "the data, or start anew with runtime.resume=false"
            )
        folder.load_checkpoint()
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

    def note_manifest(self, digest: str) -> None:
        """Note in run.json which split the sites hold, where the server itself does not know."""
        facts = self.read_json("run.json") or {}
        if facts.get("manifest") is None:
            self.write("run.json", pretty({**facts, "manifest": digest}))


def _as_preset(plain_config: Mapping[str, Any]) -> str:
    """Return the settings as a preset; a run of it is a new one, so it has no run folder's name."""
    runtime = {**plain_config.get("runtime", {}), "run_name": "", "resume": False}
    plain = json_values({**plain_config, "runtime": runtime})
    text: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    return text


def open_run(
    experiment: Experiment, manifest: Savable | None = None, identity: str = ""
) -> RunFolder:
    """Return the folder that `experiment.runtime` asks for: a new one, or one to resume.

    identity: see `RunFolder.create`.

    Raises RunError and StoreError as `RunFolder.create` and `open` do.
    """
    runtime, root = experiment.runtime, out_root(experiment)
    plain, digest = to_plain(experiment), experiment_digest(experiment)
    if not runtime.resume:
        return RunFolder.create(root, runtime.run_name, plain, manifest, digest, identity)
    return RunFolder.open(_to_resume(experiment), plain, manifest, digest)


def check_run(experiment: Experiment) -> None:
    """Check early what `open_run` would refuse: no run to resume, another one, or a name taken.

    Nothing is changed: another server may be at work in the folder.
    """
    runtime, root = experiment.runtime, out_root(experiment)
    if runtime.resume:
        plain, digest = to_plain(experiment), experiment_digest(experiment)
        RunFolder.resumable(_to_resume(experiment), plain, None, digest)
    elif runtime.run_name:
        check_name(runtime.run_name)
        if (root / runtime.run_name).exists():
            raise RunError(taken(root / runtime.run_name))


def _to_resume(experiment: Experiment) -> Path:
    """Return the folder of the run to resume. Raises RunError where none is named."""
    root, name = out_root(experiment), experiment.runtime.run_name
    if not name:
        raise RunError(
            f"runtime.resume needs runtime.run_name, the run's folder in {root}; {newest(root)}"
        )
    return root / name
