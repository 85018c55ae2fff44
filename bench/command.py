"""Options and errors that the commands of all benchmarks share."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from fedapp.core.errors import FedAppError
from fedapp.core.process_tuning import tune_own_process

Quick = Annotated[bool, typer.Option("--quick", help="toy size; nothing is recorded")]


def carry_out(main: Callable[..., None]) -> None:
    """Run a benchmark as a command; an error prints one line and gives exit code 2."""
    tune_own_process()
    try:
        typer.run(main)
    except FedAppError as error:
        print(f"{called()}: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def called() -> str:
    """Return the name of the module that runs as a program, such as bench.peers."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name.removesuffix(".__main__") if spec else Path(sys.argv[0]).name


def several(text: str) -> list[str]:
    """Return the parts of an option that are separated by commas."""
    return [part.strip() for part in text.split(",") if part.strip()]
