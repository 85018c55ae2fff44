"""Settings, commands and terms that version 2.0 removed, and what to do instead of each.

Version 1.0.0 still has all of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fedapp.core.errors import ConfigError

TAKEN_OUT = "was taken out in 2.0"


@dataclass(frozen=True)
class Setting:
    """A setting that was removed.

    default: its default value, which had no effect. Every run of an earlier version has it in its
    config.yaml, so that it is still accepted. instead: what to do if it has another value.
    """

    default: str | float
    instead: str


SETTINGS: Mapping[str, Setting] = {
    "privacy.noise": Setting(
        0.0, "leave it out; privacy.epsilon (docs/SECURITY.md) hides an image or a patient"
    ),
    "runtime.graphs": Setting(
        False, "leave it out; `runtime.workers` keeps a card busy (docs/PERFORMANCE.md)"
    ),
    "runtime.grouped": Setting(
        False, "leave it out; sites train one after the other, or in `runtime.workers` processes"
    ),
    "runtime.peers": Setting(
        "", "leave it out; begin a run with the new sites in it (docs/JOINING.md)"
    ),
}
"""The removed settings, by dotted key."""
COMMANDS: Mapping[str, str] = {
    "check-server": "use `fedapp check --server host:port --keys FOLDER`",
    "code-hash": "use `fedapp approve --hash`",
    "labels": "write the labels into the site's CSV file (docs/OWN_DATA.md)",
    "manifest": "use `fedapp presets PRESET --manifest FILE`",
    "members": "use `fedapp sites --members KEYS`",
    "models": "use `fedapp site RUN --check`",
    "onboard": "begin a run with the new site in it (docs/JOINING.md)",
    "page": "use `fedapp report` or `fedapp watch`; at a site also `fedapp audit`",
    "tune": "use `fedapp compare GRID --tune`",
}
"""The removed commands of `fedapp`, and what to do instead."""
TERMS: Mapping[str, str] = {
    "noise_at_least": "write epsilon_at_most, which refuses runs without noise",
}
"""The removed terms of a site's own site.yaml, and what to do instead."""


def is_withdrawn_default(key: str, value: object) -> bool:
    """Whether a setting was removed and has the default value, which had no effect."""
    return key in SETTINGS and value == SETTINGS[key].default


def refuse_command(name: str) -> None:
    """Raise ConfigError if the command was removed."""
    if name in COMMANDS:
        raise ConfigError(f"`fedapp {name}` {TAKEN_OUT}: {COMMANDS[name]}")
