"""Whether a run may be resumed: its settings then and now."""

import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from fedapp.experiment.config import MACHINE_KEYS, experiment_digest, from_plain, to_plain
from fedapp.experiment.records import Records, Row, json_values
from fedapp.ground.errors import FedAppError, RunError
from fedapp.ground.foreign import ForeignError, yaml_file

log = logging.getLogger(__name__)


def differences(path: Path, plain_config: Mapping[str, Any]) -> str:
    """Name the settings that differ from those of the folder `path`, three at most; empty: none."""
    try:
        old = yaml_file(path / "config.yaml")
        with suppress(FedAppError):  # else what was taken out or added since would be named too
            old = to_plain(from_plain(old, str(path)))
        found = [f"{key} {was!r}, now {now!r}" for key, was, now in differing(old, plain_config)]
    except (OSError, ForeignError, AttributeError, TypeError, ValueError):
        return "its config.yaml cannot be read"
    more = [f"{len(found) - 3} more"] if len(found) > 3 else []
    return "; ".join(found[:3] + more)


def differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return the settings that differ, but for the machine's: key, old value, new value."""
    before, after = _flat(old), _flat(new)
    return [
        (key, before.get(key), after.get(key))
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
        and key not in MACHINE_KEYS
        and key.partition(".")[0] not in MACHINE_KEYS
    ]


def digests_of(path: Path, noted: str) -> set[str]:
    """Return what the settings of the folder `path` are known by.

    That is the digest that was noted when the run began, and the one of its config.yaml as this
    version reads it. The two differ where settings have been taken out since, or added: an older
    run has their default values. A run with masked sums or with epsilon is known by the first
    alone: what one version's noise is worth, another need not know.
    """
    try:
        stored = from_plain(yaml_file(path / "config.yaml"), f"{path}/config.yaml")
    except (FedAppError, OSError, ForeignError, TypeError, ValueError):
        return {noted}
    private = stored.privacy.masked or stored.privacy.epsilon
    return {noted} if private else {noted, experiment_digest(stored)}


def is_longer(path: Path, plain_config: Mapping[str, Any], digests: Collection[str]) -> bool:
    """Say whether the settings are those of the folder `path` but for more rounds.

    digests: of the folder's settings. No round depends on how many come after it, so the numbers
    are those of a run that was as long from the start. Raises RunError where the rounds are fewer
    and all else is equal.
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


def note_rounds(records: Records, plain_config: Mapping[str, Any]) -> None:
    """Write into config.yaml how many rounds the run has now, where it says otherwise."""
    wanted = plain_config["rounds"]["num_rounds"]
    if _rounds(records.path) not in {None, wanted}:
        plain = yaml_file(records.path / "config.yaml")
        plain["rounds"]["num_rounds"] = wanted
        records.write("config.yaml", yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))


def warn_of_other_bits(path: Path, plain_config: Mapping[str, Any]) -> None:
    """Warn of settings that change the last bits of numbers."""
    old = _flat(yaml_file(path / "config.yaml"))
    new = _flat(plain_config)
    for key in ("runtime.device", "runtime.threads", "runtime.precision"):
        if old.get(key) != new.get(key):
            log.warning(
                "%s was %s, now %s: the last bits of its rounds may differ",
                key,
                old.get(key),
                new.get(key),
            )


def _rounds(path: Path) -> int | None:
    """Return the rounds that config.yaml asks for; None where it does not say."""
    try:
        number = yaml_file(path / "config.yaml")["rounds"]["num_rounds"]
    except (OSError, ForeignError, LookupError, TypeError):
        return None
    return number if isinstance(number, int) else None


def _flat(plain: Mapping[str, Any]) -> Row:
    """Return dotted keys, one group deep, and values as JSON has them."""
    flat: Row = {}
    for key, value in json_values(plain).items():
        inner = value if isinstance(value, dict) else {"": value}
        flat |= {f"{key}.{name}".rstrip("."): item for name, item in inner.items()}
    return flat
