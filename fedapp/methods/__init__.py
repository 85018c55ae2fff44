"""Methods by name: `fedapp/methods/<name>.py`, or a package, holds one and offers `METHOD`.

A method of one's own is named `package.module:Class` (docs/WRITE_A_METHOD.md).
"""

import pkgutil
from dataclasses import is_dataclass
from importlib import import_module
from typing import Any

from fedapp.ground.errors import ConfigError, nearest
from fedapp.ground.functions import class_of
from fedapp.methods.base import Method

_GIVEN: dict[str, type[Method[Any]]] = {}


def method_names() -> list[str]:
    """Return every method's name, sorted: the modules of this package but `base` and `_private`."""
    files = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in files if name != "base" and not name.startswith("_"))


def give(method: type[Method[Any]]) -> str:
    """Keep a method's class for this process, under its `name`; return the name.

    Raises ConfigError where it is no method's class, or a method of this package has the name.
    """
    name = getattr(method, "name", None)
    if not (isinstance(method, type) and issubclass(method, Method) and isinstance(name, str)):
        raise ConfigError(
            f"method {method!r}: must be a class made from fedapp.methods.base.Method, with `name`"
        )
    if name in method_names():
        raise ConfigError(f"method {name!r}: there is one of this name: choose another")
    _GIVEN[name] = method
    return name


def method_class(name: str) -> type[Method[Any]]:
    """Return the class that was given, that is named `package.module:Class`, or a file's `METHOD`.

    The file is `fedapp/methods/<name>.py`. Raises ConfigError where there is no such method.
    """
    if name in _GIVEN:
        return _GIVEN[name]
    if ":" in name:
        return _own(name)
    if name not in method_names():
        raise ConfigError(f"no such method; {nearest(name, method_names())}")
    offered = getattr(import_module(f"{__name__}.{name}"), "METHOD", None)
    if not (isinstance(offered, type) and issubclass(offered, Method) and offered.name == name):
        raise ConfigError(
            f"fedapp/methods/{name}.py must offer METHOD, a class made from Method whose "
            f'`name` is "{name}"'
        )
    return offered


def _own(name: str) -> type[Method[Any]]:
    """Return a class of one's own, whose `name` must be what it is named in the setting.

    What a run writes down is that name, from which a site or a resumed run finds the class again.
    """
    found: type[Method[Any]] = class_of(name, Method)
    if getattr(found, "name", None) != name or not is_dataclass(found):
        raise ConfigError(
            f'must be a dataclass whose `name` is "{name}"; correct the class or the name'
        )
    return found
