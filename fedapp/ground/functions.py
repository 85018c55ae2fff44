"""A user's own function, named in a setting as `package.module:function`."""

import importlib
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedapp.ground.errors import ConfigError, one_line

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def names_function(text: str) -> bool:
    """Whether a setting's value has the form `package.module:function`."""
    return _NAME.fullmatch(text) is not None


def function_of(setting: str, name: str) -> Callable[..., Any]:
    """Import and return the function that a setting names.

    Raises ConfigError where its module cannot be imported or has no such function.
    """
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function, None)
    except Exception as error:  # a user's module may fail in any way, and quote anything
        why = one_line(error) if isinstance(error, ImportError) else type(error).__name__
        raise ConfigError(
            f"{setting} = {name!r}: {module} cannot be imported ({why}): install it, or put its "
            "folder on PYTHONPATH, on every machine of the run"
        ) from error
    if not callable(found):
        raise ConfigError(
            f"{setting} = {name!r}: {module} has no function {function!r}: correct the name"
        )
    return found  # type: ignore[no-any-return]


def source_of(name: str) -> Path:
    """Return the file or folder of the package that a function's name begins with.

    Nothing is imported. Where there is no such package, the path is one where nothing is.
    """
    package = re.split("[.:]", name)[0]
    spec = find_spec(package)
    if spec is None:
        return Path(package)
    folders = list(spec.submodule_search_locations or ())
    return Path(folders[0] if folders else spec.origin or package)
