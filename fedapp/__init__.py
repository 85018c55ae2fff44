"""Federated learning from partly labelled data: ten lines of Python (docs/PYTHON.md).

Nothing is imported until it is used: torch takes seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedapp.api.comparing import Comparison, compare
    from fedapp.api.data import Federation, Site
    from fedapp.api.runs import Model, Run, load_model, open_run, run
    from fedapp.core.errors import FedAppError
    from fedapp.learn.networks import Network
    from fedapp.methods.averaging._user_loop import OwnLoop

__all__ = [
    "Comparison",
    "FedAppError",
    "Federation",
    "Model",
    "Network",
    "OwnLoop",
    "Run",
    "Site",
    "__version__",
    "compare",
    "load_model",
    "open_run",
    "run",
]

_FROM = {
    "fedapp.api.comparing": ("Comparison", "compare"),
    "fedapp.api.data": ("Federation", "Site"),
    "fedapp.api.runs": ("Model", "Run", "load_model", "open_run", "run"),
    "fedapp.core.errors": ("FedAppError",),
    "fedapp.learn.networks": ("Network",),
    "fedapp.methods.averaging._user_loop": ("OwnLoop",),
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("fedapp")
    for module, names in _FROM.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'fedapp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
