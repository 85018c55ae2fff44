"""Optional libraries: each is installed with an extra of this package."""

from importlib import import_module
from types import ModuleType
from typing import Literal

from fedapp.core.errors import ConfigError, one_line

Extra = Literal["dicom", "docs", "encoder", "onnx", "parquet", "privacy", "timm", "track"]
"""The extras in pyproject.toml's `optional-dependencies`."""


class NotInstalled(ConfigError):
    """An optional library is not installed. what: which one; remedy: how to install it."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}: {remedy}")
        self.what, self.remedy = what, remedy


def needs(extra: Extra, module: str) -> ModuleType:
    """Import and return a module of an optional library.

    Raises NotInstalled if it is absent, or if it cannot be imported, for whatever reason.
    """
    library, what = module.partition(".")[0], ""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        absent = (error.name or "").partition(".")[0]
        what = "is not installed" if absent == library else f"needs {absent}, which is absent"
        cause: Exception = error
    except Exception as error:  # a library of another version may raise anything
        what, cause = f"cannot be imported ({one_line(error, 200)})", error
    remedy = f"pip install 'fedapp[{extra}]' (in a checkout: pip install '.[{extra}]')"
    raise NotInstalled(f"{library} {what}", remedy) from cause
