"""Whether a run may be resumed: its settings then and now."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fedapp.experiment.config import MACHINE_KEYS
from fedapp.experiment.records import Row, json_values

log = logging.getLogger(__name__)


def differences(path: Path, plain_config: Mapping[str, Any]) -> str:
    """Name the settings that differ from those of the folder `path`, three at most."""
    try:
        old = _flat(yaml.safe_load((path / "config.yaml").read_bytes()))
    except (OSError, yaml.YAMLError, AttributeError):
        return "its config.yaml cannot be read"
    new = _flat(json_values(plain_config))
    found = [
        f"{key} {old.get(key)!r}, now {new.get(key)!r}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
        and key not in MACHINE_KEYS
        and key.partition(".")[0] not in MACHINE_KEYS
    ]
    more = [f"{len(found) - 3} more"] if len(found) > 3 else []
    return "; ".join(found[:3] + more) or "by another version of this software"


def warn_of_other_bits(path: Path, plain_config: Mapping[str, Any]) -> None:
    """Warn of settings that change the last bits of numbers."""
    old = _flat(yaml.safe_load((path / "config.yaml").read_bytes()))
    new = _flat(json_values(plain_config))
    for key in ("runtime.device", "runtime.threads", "runtime.precision"):
        if old.get(key) != new.get(key):
            log.warning(
                "%s was %s, now %s: the last bits of its rounds may differ",
                key,
                old.get(key),
                new.get(key),
            )


def _flat(plain: Mapping[str, Any]) -> Row:
    """Return dotted keys, one group deep."""
    flat: Row = {}
    for key, value in plain.items():
        inner = value if isinstance(value, dict) else {"": value}
        flat |= {f"{key}.{name}".rstrip("."): item for name, item in inner.items()}
    return flat
