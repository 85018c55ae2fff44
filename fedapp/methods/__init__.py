"""Methods by name: `fedapp/methods/<name>.py`, or a package, holds one and offers `METHOD`."""

import difflib
import pkgutil
from importlib import import_module
from typing import Any

from fedapp.ground.errors import ConfigError
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
    """Return the class that was given, or that `fedapp/methods/<name>.py` offers as `METHOD`.

    Raises ConfigError where there is no such file or it offers no method.
    """
    if name in _GIVEN:
        return _GIVEN[name]
    names = method_names()
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"valid: {', '.join(names)}"
        raise ConfigError(f"no such method; {hint}")
    offered = getattr(import_module(f"{__name__}.{name}"), "METHOD", None)
    if not (isinstance(offered, type) and issubclass(offered, Method) and offered.name == name):
        raise ConfigError(
            f"fedapp/methods/{name}.py must offer METHOD, a class made from Method whose "
            f'`name` is "{name}"'
        )
    return offered
