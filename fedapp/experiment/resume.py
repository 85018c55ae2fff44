"""Opens the folder of a run: makes a new one, or checks that an old run may be resumed.

A run may only be resumed with the settings that it had. The settings of the machine may differ, and
the number of rounds may be larger. Only one server at a time works on a run.
"""

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from fedapp.core.disk import remove_stale
from fedapp.core.errors import FedAppError, RunError
from fedapp.core.untrusted_files import UntrustedFileError, read_yaml
from fedapp.experiment.code_hash import code_hash
from fedapp.experiment.config import (
    differing,
    experiment_digest,
    first_three,
    from_plain,
    to_plain,
)
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.run_folder import (
    SERVER_LOCK,
    RunFolder,
    Savable,
    check_name,
    locked,
    name_taken,
    newest_run,
    out_root,
    pretty_json,
)

log = logging.getLogger(__name__)


def open_run(
    experiment: Experiment, manifest: Savable | None = None, identity: str = ""
) -> RunFolder:
    """Return the folder that `experiment.runtime` asks for: a new one, or one to resume.

    In a folder to resume, the rows of rounds after the checkpoint are dropped, so that no other
    server may work there (`sole_server`). Where `rounds.num_rounds` is larger than it was, the
    folder becomes that of the longer run. manifest: the split; None: the server does not know it.
    identity: see `RunFolder.create`.

    Raises RunError and StoreError as `RunFolder.create` does, and RunError as `resumable` does.
    """
    runtime, plain, digest = experiment.runtime, to_plain(experiment), experiment_digest(experiment)
    if not runtime.resume:
        root = out_root(experiment)
        return RunFolder.create(root, runtime.run_name, plain, manifest, digest, identity)
    folder = resumable(experiment, manifest)
    facts = folder.read_json("run.json") or {}
    if facts.get("code") != code_hash()[1]:
        log.warning(
            "%s was started with code %s and continues with %s: its rounds may differ",
            folder.path,
            facts.get("code"),
            code_hash()[1],
        )
    warn_of_numeric_changes(folder.path, plain)
    if facts.get("experiment") != digest:  # longer
        folder.write("run.json", pretty_json({**facts, "experiment": digest}))
    store_num_rounds(folder, plain)
    folder.drop_rows_after((folder.load_checkpoint() or {"round": -1})["round"])
    remove_stale(folder.path)
    return folder


def check_run(experiment: Experiment) -> None:
    """Raise early what `open_run` would raise: no run to resume, another run, or a name in use.

    Nothing is changed, since another server may be working in the folder.
    """
    name = experiment.runtime.run_name
    if experiment.runtime.resume:
        resumable(experiment, None)
    elif name:
        check_name(name)
        if (folder := out_root(experiment) / name).exists():
            raise RunError(name_taken(folder))


def resumable(experiment: Experiment, manifest: Savable | None) -> RunFolder:
    """Return the folder of a run that can be resumed, without changing anything in it.

    Raises RunError where no run is named or none has that name, where its checkpoint is damaged, or
    where it belongs to another experiment: other settings (which the error names), fewer rounds, or
    other images.
    """
    root, name = out_root(experiment), experiment.runtime.run_name
    if not name:
        raise RunError(
            f"runtime.resume needs runtime.run_name, the run's folder in {root}; {newest_run(root)}"
        )
    folder, plain, path = RunFolder(root / name), to_plain(experiment), root / name
    facts = folder.read_json("run.json")
    if facts is None:
        raise RunError(
            f"{path}: no run to resume; name one with runtime.run_name and its folder with "
            "runtime.out, or start again with runtime.resume=false"
        )
    before = known_digests(path, str(facts.get("experiment")))
    if experiment_digest(experiment) not in before and not is_extension(path, plain, before):
        what = differences(path, plain) or "by another version of this software"
        raise RunError(
            f"{path}: a run with other settings ({what}); give "
            "the settings in its config.yaml, or start again under another runtime.run_name"
        )
    if manifest and facts.get("manifest") not in {None, manifest.digest()}:
        raise RunError(
            f"{path}: a run on other images or another split than data.root holds now; restore "
            "the data, or start again with runtime.resume=false"
        )
    folder.load_checkpoint()
    return folder


@contextmanager
def sole_server(
    experiment: Experiment, manifest: Savable | None = None, identity: str = ""
) -> Iterator[RunFolder]:
    """Lock the folder that `open_run` returns, so that no second server works on the same run.

    A server may seem dead and still work, for example after a SuperLink or a connection was down.
    The kernel releases the lock when the process ends, however it ends. Raises RunError where
    another process holds the lock, and what `open_run` raises.
    """
    # A folder to resume is locked before it is opened, because opening it truncates its records.
    first = out_root(experiment) / experiment.runtime.run_name
    early = experiment.runtime.resume and (first / "run.json").exists()
    path = first if early else (folder := open_run(experiment, manifest, identity)).path
    busy = "its run is still going on; let it end, or end it (on Flower: flwr stop), "
    with locked(path / SERVER_LOCK, f"{path}: {busy}and then resume it"):
        yield open_run(experiment, manifest) if early else folder


def differences(path: Path, plain_config: Mapping[str, Any]) -> str:
    """Return up to three settings that differ from those of the folder `path`; "": none do."""
    try:
        old = read_yaml(path / "config.yaml")
        with suppress(FedAppError):  # fills in what other versions lack, so that it is not named
            old = to_plain(from_plain(old, str(path)))
        found = [f"{key} {was!r}, now {now!r}" for key, was, now in differing(old, plain_config)]
    except (OSError, UntrustedFileError, AttributeError, TypeError, ValueError):
        return "its config.yaml cannot be read"
    return first_three(found)


def known_digests(path: Path, noted: str) -> set[str]:
    """Return the digests by which the settings of the folder `path` may be recognised.

    These are the digest that was written when the run began, `noted`, and that of config.yaml as
    this version reads it. They differ where settings were added or withdrawn since; an older run
    has their default values. A run with masked sums or with an epsilon is recognised by the first
    digest only, because another version may implement its protection in another way.
    """
    try:
        stored = from_plain(read_yaml(path / "config.yaml"), f"{path}/config.yaml")
    except (FedAppError, OSError, UntrustedFileError, TypeError, ValueError):
        return {noted}
    private = stored.privacy.masked or stored.privacy.epsilon
    return {noted} if private else {noted, experiment_digest(stored)}


def is_extension(path: Path, plain_config: Mapping[str, Any], digests: Collection[str]) -> bool:
    """Return whether the settings are those of the folder `path`, except for more rounds.

    No round depends on how many follow it, so the extended run has the numbers of one that was as
    long from the start. digests: of the folder's settings. Raises RunError where the number of
    rounds is smaller and everything else is equal.
    """
    had, wanted = _rounds(path), plain_config["rounds"]["num_rounds"]
    rounds = {**plain_config["rounds"], "num_rounds": had}
    as_it_was = from_plain({**plain_config, "rounds": rounds}, "the run's settings")
    if had is None or experiment_digest(as_it_was) not in digests:
        return False
    if wanted < had:
        raise RunError(
            f"{path}: a run of {had} rounds, now rounds.num_rounds = {wanted}: a run can be "
            f"extended but not cut short; give {had} or more"
        )
    return True


def store_num_rounds(folder: RunFolder, plain_config: Mapping[str, Any]) -> None:
    """Write the run's new number of rounds into config.yaml, if it has another one."""
    wanted = plain_config["rounds"]["num_rounds"]
    if _rounds(folder.path) not in {None, wanted}:
        plain = read_yaml(folder.path / "config.yaml")
        plain["rounds"]["num_rounds"] = wanted
        folder.write("config.yaml", yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))


def warn_of_numeric_changes(path: Path, plain_config: Mapping[str, Any]) -> None:
    """Log a warning where settings that change the last bits of results differ."""
    old, new = read_yaml(path / "config.yaml").get("runtime", {}), plain_config["runtime"]
    for key in ("device", "threads", "precision"):
        if old.get(key) != new[key]:
            log.warning(
                "runtime.%s was %s, now %s: the last bits of its rounds may differ",
                key,
                old.get(key),
                new[key],
            )


def _rounds(path: Path) -> int | None:
    """Return the number of rounds in config.yaml; None where it has none."""
    try:
        number = read_yaml(path / "config.yaml")["rounds"]["num_rounds"]
    except (OSError, UntrustedFileError, LookupError, TypeError):
        return None
    return number if isinstance(number, int) else None
