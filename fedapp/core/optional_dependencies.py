"""Libraries that only some people need: each comes with an extra of this package."""

from importlib import import_module
from types import ModuleType
from typing import Literal

from fedapp.core.errors import ConfigError

Extra = Literal["dicom", "docs", "onnx", "parquet", "privacy", "timm", "track"]
"""A group in pyproject's optional-dependencies."""


class NotInstalled(ConfigError):
    """A library that an extra brings is not installed. what: which; remedy: how to have it."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}: {remedy}")
        self.what, self.remedy = what, remedy


def needs(extra: Extra, module: str) -> ModuleType:
    """Import a module that an extra brings. Raises NotInstalled where it is not there."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module.partition(".")[0]:
            raise  # it is there, and lacks something of its own
        raise NotInstalled(
            f"{module.partition('.')[0]} is not installed",
            f"pip install 'fedapp[{extra}]' (in a checkout: pip install '.[{extra}]')",
        ) from error
