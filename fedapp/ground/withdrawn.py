"""The names that version 2.0 took out, each with what to do instead. Version 1.0.0 has them all."""

from collections.abc import Mapping

from fedapp.ground.errors import ConfigError

COMMANDS: Mapping[str, str] = {
    "page": "use `fedapp report` or `fedapp watch`; at a site also `fedapp audit`",
}
"""Commands of `fedapp`, and what to do instead."""


def refuse_command(name: str) -> None:
    """Raise ConfigError where the command was taken out."""
    if name in COMMANDS:
        raise ConfigError(f"`fedapp {name}` was taken out in 2.0: {COMMANDS[name]}")
