"""Averaging rules by name: `fedapp/aggregation/<name>.py` holds one and offers `RULE`.

A rule of one's own is named `package.module:Class` (docs/extend/methods.md).
"""

from importlib import import_module
from typing import Any

from fedapp.aggregation.base import Rule
from fedapp.core.errors import ConfigError, nearest
from fedapp.core.plugins import class_of, modules_in

_NOT_RULES = ("base", "changes", "server_optimizers")


def rule_names() -> list[str]:
    """Return every rule's name, sorted: this package's modules but `_private` and helping ones."""
    return modules_in(__path__, _NOT_RULES)


def rule_of(name: str) -> Rule[Any]:
    """Return the rule of this name, or that of `package.module:Class`, made without arguments.

    Raises ConfigError where there is none, or it is no rule.
    """
    rule: Rule[Any]
    if ":" in name:
        rule = class_of(name, Rule)()
        return rule
    if name not in rule_names():
        raise ConfigError(f"no such rule; {nearest(name, rule_names())}")
    rule = import_module(f"{__name__}.{name}").RULE
    return rule
