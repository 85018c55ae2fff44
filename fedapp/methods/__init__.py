"""Methods by name: `fedapp/methods/<name>.py`, or a package, holds one and offers `METHOD`."""

import difflib
import pkgutil
from importlib import import_module
from typing import Any

from fedapp.ground.errors import ConfigError
from fedapp.methods.base import Method


def method_names() -> list[str]:
    """Return every method's name, sorted: the modules of this package but `base` and `_private`."""
    files = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in files if name != "base" and not name.startswith("_"))


def method_class(name: str) -> type[Method[Any]]:
    """Return the class that `fedapp/methods/<name>.py` offers as `METHOD`.

    Raises ConfigError where there is no such file or it offers no method.
    """
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
