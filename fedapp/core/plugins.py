"""Find what a setting names: a module of this package, or a user's `package.module:function`."""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedapp.core.errors import ConfigError, name_suggestion, one_line

_REGISTERED: dict[str, Callable[..., Any]] = {}
_FUNCTION_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def is_function_name(text: str) -> bool:
    """Whether a setting's value has the form `package.module:function`."""
    return _FUNCTION_NAME.fullmatch(text) is not None


def name_advice(name: str, names: Iterable[str]) -> str:
    """Return the remedy for a name that is neither one of `names` nor the name of a function."""
    if "." in name or ":" in name:
        return "a function of your own is named package.module:function"
    return name_suggestion(name, names)


def module_names(folders: Iterable[str], helping: Sequence[str] = ("base",)) -> list[str]:
    """Return the sorted names of a package's modules, without `_private` and `helping` ones.

    folders: the package's `__path__`.
    """
    names = (module.name for module in pkgutil.iter_modules(folders))
    return sorted(name for name in names if name not in helping and name[0] != "_")


def class_in_module(package: str, name: str, constant: str, base: type) -> type:
    """Return the class that the module `package.name` assigns to a constant, such as `METHOD`.

    Raises ConfigError unless that is a subclass of `base` whose attribute `name` is the module's
    name.
    """
    offered = getattr(importlib.import_module(f"{package}.{name}"), constant, None)
    named = getattr(offered, "name", None) == name
    if not (isinstance(offered, type) and issubclass(offered, base) and named):
        raise ConfigError(
            f"{package.replace('.', '/')}/{name}.py must offer {constant}, a class made from "
            f'{base.__name__} whose `name` is "{name}"'
        )
    return offered


def register_function(function: Callable[..., Any]) -> str:
    """Register a function of this process under `module:name`, and return that name.

    `load_function` then finds functions that cannot be imported, such as one defined in a notebook
    or inside another function. Raises ConfigError if it is not a function with a name.
    """
    name = f"{getattr(function, '__module__', '')}:{getattr(function, '__name__', '')}"
    if not (inspect.isfunction(function) and is_function_name(name)):
        hint = "; give the function that makes it, not what it made"
        hint = "" if inspect.isfunction(function) else hint
        shown = f"{type(function).__name__} {one_line(function, 60)}"
        raise ConfigError(f"{shown}: must be a function with a name: write it with `def`{hint}")
    _REGISTERED[name] = function
    return name


def load_function(name: str) -> Callable[..., Any]:
    """Return the function that a setting names: a registered one, or else an imported one.

    Raises ConfigError if the name has another form, the module cannot be imported, or it has no
    such function. The caller adds the name of the setting to the error.
    """
    if name in _REGISTERED:
        return _REGISTERED[name]
    module, function, found = _imported(name, "function")
    if not inspect.isfunction(found):
        raise ConfigError(f"{module!r} has no function {function!r}; correct the name")
    return found


def load_class(name: str, base: type) -> type:
    """Return the subclass of `base` that a setting names in the form `package.module:Class`.

    Raises ConfigError as `load_function` does, and if an abstract method is not implemented.
    """
    module, named, found = _imported(name, "Class")
    if not (isinstance(found, type) and issubclass(found, base)):
        whose = f"{base.__module__}.{base.__qualname__}"
        raise ConfigError(f"{module!r} has no class {named!r} made from {whose}; correct the name")
    if lacking := [n for n in dir(found) if _is_abstract(getattr(found, n, None))]:
        raise ConfigError(f"{named} of {module!r} lacks {', '.join(lacking)}; write them")
    return found


def _is_abstract(member: object) -> bool:
    return getattr(member, "__isabstractmethod__", False) is True


def _imported(name: str, what: str) -> tuple[str, str, object]:
    """Return the names of the module and of the member, and the member, or None if it is absent."""
    if not is_function_name(name):
        raise ConfigError(f"must be package.module:{what}; correct the name")
    module, _, member = name.partition(":")
    try:
        return module, member, getattr(importlib.import_module(module), member, None)
    except ImportError as error:
        raise ConfigError(
            f"cannot import {module!r} ({one_line(error, 200)}); install it on this machine, or "
            "name its folder in PYTHONPATH"
        ) from error
    except Exception as error:  # a module's own code may raise anything and quote anything
        why = type(error).__name__
        raise ConfigError(
            f"cannot import {module!r} ({why}); import it by itself to see where it fails"
        ) from error


def source_path(name: str) -> Path:
    """Return the file or folder of the package in which a function is, without importing it.

    If there is no such package, the returned path does not exist.
    """
    package = re.split("[.:]", name)[0]
    spec = find_spec(package)
    if spec is None:
        return Path(package)
    folders = list(spec.submodule_search_locations or ())
    return Path(folders[0] if folders else spec.origin or package)
