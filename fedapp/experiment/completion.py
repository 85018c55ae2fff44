"""Shell completion: names of presets and runs, and keys of settings.

A shell waits for the answer, so nothing here imports torch, and no experiment is built.
"""

from collections.abc import Iterable
from dataclasses import fields

from fedapp.experiment.preset_files import (
    CONF,
    method_path,
    method_presets,
    presets,
    read_yaml,
    sweeps,
)
from fedapp.experiment.run_folder import run_names, runs_root

_METHOD = "method.preset="


def complete_preset(incomplete: str) -> list[str]:
    """Return the presets whose names begin with `incomplete`."""
    return _with_prefix(incomplete, presets())


def complete_grid(incomplete: str) -> list[str]:
    """Return the sweeps and presets whose names begin with `incomplete`."""
    return _with_prefix(incomplete, [*sweeps(), *presets()])


def complete_run(incomplete: str) -> list[str]:
    """Return the runs and comparisons whose names begin with `incomplete`, the newest first."""
    return _with_prefix(incomplete, reversed(run_names(runs_root())))


def complete_methods(incomplete: str) -> list[str]:
    """Return the completions of a comma-separated list of method presets."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _with_prefix(last, method_presets())]


def complete_override(incomplete: str) -> list[str]:
    """Return keys that begin with `incomplete`, each with "="; of `method.preset=`, its values."""
    if incomplete.startswith(_METHOD):
        return _with_prefix(incomplete, (f"{_METHOD}{name}" for name in method_presets()))
    return _with_prefix(incomplete, (f"{key}=" for key in setting_keys()))


def setting_keys() -> list[str]:
    """Return the keys that can be overridden, sorted.

    Of methods and networks these are only the keys that a preset of this project sets:
    `config.config_keys` knows all, but must import the methods and networks.
    """
    # Imported here because it takes a fifth of a second, which other completions do not need.
    from fedapp.core.settings import GROUPS

    keys = {"seed", "method.preset"}
    keys |= {f"{group}.{field.name}" for group, cls in GROUPS.items() for field in fields(cls)}
    for path in (*map(method_path, method_presets()), *CONF.glob("*.yaml")):
        plain = read_yaml(path)
        for group in ("method", "model"):
            keys |= {f"{group}.{key}" for key in plain.get(group, {})}
    return sorted(keys)


def _with_prefix(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
