"""Methods by name, each in the folder of its family: `<family>/<name>.py` defines `METHOD`.

A method of several files is a package `<name>` whose `method.py` defines it. Modules whose name
begins with `_` are shared by methods, and so are `base` and `incompatibilities`; a user's own
method is derived from `base.Method` too. It is named `package.module:Class`
(docs/extend/methods.md).
"""

import pkgutil
from collections.abc import Sequence
from dataclasses import is_dataclass
from importlib import import_module
from typing import Any

from fedapp.core.errors import ConfigError, name_suggestion
from fedapp.core.plugins import load_class
from fedapp.methods.base import Method
from fedapp.methods.incompatibilities import reasons_of

SHARED = frozenset({"base", "incompatibilities"})
"""Public modules that are no methods."""
RENAMED = {
    "asks_peers": "joins_at", "single": "used", "protected_steps": "image_level",
    "misfit": "incompatibilities", "misfits": "incompatibilities", "unfit": "incompatibilities",
    "unlearnable": "incompatibilities", "needs_labels": "unsupported", "needs_mean": "unsupported",
    "needs_unclipped": "unsupported", "needs_plain": "unsupported", "needs_open": "unsupported",
    "needs_classes": "unsupported", "needs_images": "unsupported", "sums_suffice": "unsupported",
}  # fmt: skip
"""What members of `Method` in version 1.0.0 are called now. A class that still has an old one is
refused, since nothing would call it."""
_REGISTERED: dict[str, type[Method[Any]]] = {}
"""Classes that a program has passed to this process, by name."""


def method_names() -> list[str]:
    """Return the names of all methods of this package, sorted."""
    return sorted(_modules(__path__, __name__))


def methods_learning_from(part: str) -> list[str]:
    """Return the names of the methods that can learn from a part of the sites' data, sorted."""
    return [name for name in method_names() if part in method_class(name).learns_from]


def image_level_methods() -> list[str]:
    """Return the names of the methods that can protect single images, sorted."""
    return [name for name in method_names() if method_class(name).image_level is not None]


def masked_methods() -> list[str]:
    """Return the names of the methods whose server needs nothing but sums over sites, sorted."""
    every = method_names()
    return [name for name in every if not reasons_of(method_class(name))["privacy.sums"]]


def _modules(folders: Sequence[str], package: str) -> dict[str, str]:
    """Return the modules of a package that define methods, by the method's name."""
    found: dict[str, str] = {}
    for module in pkgutil.iter_modules(folders):
        name, dotted = module.name, f"{package}.{module.name}"
        if name in SHARED or name.startswith("_"):
            continue
        inside = [f"{folder}/{name}" for folder in folders]
        if not module.ispkg:
            found[name] = dotted
        elif "method" in {one.name for one in pkgutil.iter_modules(inside)}:
            found[name] = f"{dotted}.method"
        else:
            found |= _modules(inside, dotted)
    return found


def register(method: type[Method[Any]]) -> str:
    """Make a class of a method known in this process under its `name`; return the name.

    Raises ConfigError where it is not the class of a method, or a method of this package has that
    name.
    """
    name = getattr(method, "name", None)
    if not (isinstance(method, type) and issubclass(method, Method) and isinstance(name, str)):
        raise ConfigError(
            f"method {method!r}: must be a class made from fedapp.methods.base.Method, with `name`"
        )
    if name in method_names():
        raise ConfigError(f"method {name!r}: there is one of this name: choose another")
    if problem := _outdated(method):
        raise ConfigError(f"method {name!r}: {problem}")
    _REGISTERED[name] = method
    return name


def method_class(name: str) -> type[Method[Any]]:
    """Return the class of a method.

    name: of a registered class, of a method of this package, or `package.module:Class`. Raises
    ConfigError where there is no such method.
    """
    if name in _REGISTERED:
        return _REGISTERED[name]
    if ":" in name:
        return _users_class(name)
    modules = _modules(__path__, __name__)
    if name not in modules:
        raise ConfigError(f"no such method; {name_suggestion(name, sorted(modules))}")
    offered = getattr(import_module(modules[name]), "METHOD", None)
    if not (isinstance(offered, type) and issubclass(offered, Method) and offered.name == name):
        raise ConfigError(
            f'{modules[name]} must offer METHOD, a class made from Method whose `name` is "{name}"'
        )
    return offered


def _users_class(name: str) -> type[Method[Any]]:
    """Return the class that `package.module:Class` names; its `name` must be that same text.

    A run records the name, from which a site or a resumed run must find the class again.
    """
    found: type[Method[Any]] = load_class(name, Method)
    if getattr(found, "name", None) != name or not is_dataclass(found):
        raise ConfigError(
            f'must be a dataclass whose `name` is "{name}"; correct the class or the name'
        )
    if problem := _outdated(found):
        raise ConfigError(problem)
    return found


def _outdated(method: type[Method[Any]]) -> str:
    """Return why a class written for version 1.0.0 must be changed; empty: it need not be."""
    old = next((name for name in RENAMED if hasattr(method, name)), "")
    return old and f"has `{old}`, which has become `{RENAMED[old]}`: rename it (docs/extend)"
