"""What a shell offers while a command is typed: names of presets and runs, keys of settings.

It must answer in a blink, so nothing here imports torch: no experiment is built.
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


def complete_preset(begun: str) -> list[str]:
    """Return the presets that begin so."""
    return _beginning(begun, presets())


def complete_grid(begun: str) -> list[str]:
    """Return the sweeps and presets that begin so."""
    return _beginning(begun, [*sweeps(), *presets()])


def complete_run(begun: str) -> list[str]:
    """Return the runs and comparisons that begin so, the newest first."""
    return _beginning(begun, reversed(run_names(runs_root())))


def complete_methods(begun: str) -> list[str]:
    """Return what a list of method presets with commas can go on with."""
    before, comma, last = begun.rpartition(",")
    return [f"{before}{comma}{name}" for name in _beginning(last, method_presets())]


def complete_override(begun: str) -> list[str]:
    """Return the keys that begin so, each with "="; after `method.preset=` the method presets."""
    if begun.startswith(_METHOD):
        return _beginning(begun, (f"{_METHOD}{name}" for name in method_presets()))
    return _beginning(begun, (f"{key}=" for key in setting_keys()))


def setting_keys() -> list[str]:
    """Return the keys that can be overridden, sorted.

    Of methods and networks those that a preset of ours sets; `config.config_keys` knows all, but
    has to import them.
    """
    # Here, because it takes a fifth of a second, which names of presets and runs need not wait for.
    from fedapp.core.settings import GROUPS

    keys = {"seed", "method.preset"}
    keys |= {f"{group}.{field.name}" for group, cls in GROUPS.items() for field in fields(cls)}
    for path in (*map(method_path, method_presets()), *CONF.glob("*.yaml")):
        plain = read_yaml(path)
        for group in ("method", "model"):
            keys |= {f"{group}.{key}" for key in plain.get(group, {})}
    return sorted(keys)


def _beginning(begun: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(begun)]
