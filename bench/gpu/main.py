"""The command of `python -m bench.gpu`, where all packages are there."""

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from bench.command import Quick
from bench.gpu.pieces import Session
from fedapp.ground.errors import FedAppError
from fedapp.ground.ours import process_is_ours

PIECES = ("check", "tests", "speed", "ways", "groups", "sites", "paper", "table")
OUT = Path("runs") / "bench-gpu"
MORE = 75
"""Exit code of sysexits.h for "try again"."""


def main(
    words: Annotated[list[str] | None, typer.Argument(help="pieces, and key=value ...")] = None,
    quick: Quick = False,
    minutes: Annotated[float | None, typer.Option(help="stop when so many are over")] = None,
    out: Annotated[Path | None, typer.Option(help=f"folder of what is done [{OUT}]")] = None,
    numbers: Annotated[Path | None, typer.Option(help="the paper's, instead of ours")] = None,
) -> None:
    """Measure on a GPU, piece by piece; the same command goes on where it stopped."""
    process_is_ours()
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    given = [word for word in words or [] if "=" in word]
    wanted = [word for word in words or [] if "=" not in word] or list(PIECES)
    if unknown := [word for word in wanted if word not in PIECES]:
        _refuse(f"no piece {', '.join(unknown)}; there are {', '.join(PIECES)}")
    try:
        with TemporaryDirectory(prefix="bench-") as away:
            folder = out or (Path(away) if quick else OUT)
            done = Session(folder, quick, tuple(given), deadline, numbers).carry_out(wanted)
    except FedAppError as error:
        _refuse(str(error))
    if not done:
        print("stopped in time; the same command goes on from here", flush=True)
        raise SystemExit(MORE)


def _refuse(reason: str) -> None:
    print(f"bench.gpu: {reason}", file=sys.stderr)
    raise SystemExit(2)
