"""Averaging rules by name: `fedapp/aggregation/<name>.py` holds one and offers `RULE`.

A rule of one's own is named `package.module:Class` (docs/extend/methods.md).
"""

from importlib import import_module
from typing import Any

from fedapp.aggregation.base import Rule
from fedapp.core.errors import ConfigError, name_suggestion
from fedapp.core.plugins import load_class, module_names

_NOT_RULES = ("base", "changes", "server_optimizers")


def rule_names() -> list[str]:
    """Return the names of all rules, sorted: the public modules of this package that are rules."""
    return module_names(__path__, _NOT_RULES)


def rule_of(name: str) -> Rule[Any]:
    """Return the rule of this name, made without arguments.

    name: a rule of this package, or `package.module:Class` for a rule of one's own. Raises
    ConfigError where there is no such rule, or the class is not one.
    """
    rule: Rule[Any]
    if ":" in name:
        rule = load_class(name, Rule)()
        return rule
    if name not in rule_names():
        raise ConfigError(f"no such rule; {name_suggestion(name, rule_names())}")
    rule = import_module(f"{__name__}.{name}").RULE
    return rule
