"""Optional libraries: each is installed with an extra of this package."""

from importlib import import_module
from types import ModuleType
from typing import Literal

from fedapp.core.errors import ConfigError

Extra = Literal["dicom", "docs", "encoder", "onnx", "parquet", "privacy", "timm", "track"]
"""The extras in pyproject.toml's `optional-dependencies`."""


class NotInstalled(ConfigError):
    """An optional library is not installed. what: which one; remedy: how to install it."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}: {remedy}")
        self.what, self.remedy = what, remedy


def needs(extra: Extra, module: str) -> ModuleType:
    """Import and return a module of an optional library. Raises NotInstalled if it is absent."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module.partition(".")[0]:
            raise  # the library is installed, but one of its own dependencies is missing
        raise NotInstalled(
            f"{module.partition('.')[0]} is not installed",
            f"pip install 'fedapp[{extra}]' (in a checkout: pip install '.[{extra}]')",
        ) from error
