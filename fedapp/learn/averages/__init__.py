"""Averaging rules by name: `fedapp/learn/averages/<name>.py` holds one and offers `RULE`.

A rule of one's own is named `package.module:Class` (docs/extend/methods.md).
"""

import pkgutil
from importlib import import_module
from typing import Any

from fedapp.ground.errors import ConfigError, nearest
from fedapp.ground.functions import class_of
from fedapp.learn.averages.base import Rule


def rule_names() -> list[str]:
    """Return every rule's name, sorted: this package's modules but `base` and `_private` ones."""
    files = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in files if name != "base" and not name.startswith("_"))


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
