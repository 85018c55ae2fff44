"""Libraries that only some people need: each comes with an extra of this package."""

from importlib import import_module
from types import ModuleType
from typing import Literal

from fedapp.ground.errors import ConfigError

Extra = Literal["app", "dicom", "docs", "onnx", "track"]
"""A group in pyproject's optional-dependencies."""


def needs(extra: Extra, module: str) -> ModuleType:
    """Import a module that an extra brings. Raises ConfigError where it is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module.partition(".")[0]:
            raise  # it is there, and lacks something of its own
        raise ConfigError(
            f"{module.partition('.')[0]} is not installed: pip install 'um-pfssl[{extra}]' "
            f"(in a checkout: pip install '.[{extra}]')"
        ) from error
