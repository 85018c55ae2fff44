"""What a GPU makes of it, in pieces that a machine lent for ten minutes at a time can do.

`python -m bench.gpu [PIECE ...] [key=value ...] [--toy] [--minutes N] [--out FOLDER]
[--numbers CSV]`

    check   the card, and the packages that are missing
    tests   the tests that need a GPU
    speed   rates of scoring and training, beside a large product
    ways    training step by step and recorded, scoring in turn, as one batch and recorded
    sites   rounds with 1, 2, 4 and 8 sites at a time
    paper   the paper's Fashion-MNIST setting, six methods
    table   what came of it beside the paper's numbers

Without a piece: all, in this order. What is done lies in the folder and is not done again, so the
same command goes on after `--minutes`, or after it was killed. Exit code 75: there is more to do.
`--toy`: digits and a tiny network on the CPU; nothing is written to bench/results, nor anywhere
else without `--out`.
"""

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from bench.gpu.check import missing

PIECES = ("check", "tests", "speed", "ways", "sites", "paper", "table")
OUT = Path("runs") / "bench-gpu"
MORE = 75
"""Exit code of sysexits.h for "try again"."""


def main(
    words: Annotated[list[str] | None, typer.Argument(help="pieces, and key=value ...")] = None,
    toy: Annotated[bool, typer.Option("--toy", help="tiny, on the CPU, not recorded")] = False,
    minutes: Annotated[float | None, typer.Option(help="stop when so many are over")] = None,
    out: Annotated[Path | None, typer.Option(help=f"folder of what is done [{OUT}]")] = None,
    numbers: Annotated[Path | None, typer.Option(help="the paper's, instead of ours")] = None,
) -> None:
    """Measure on a GPU, piece by piece; the same command goes on where it stopped."""
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    given = [word for word in words or [] if "=" in word]
    wanted = [word for word in words or [] if "=" not in word] or list(PIECES)
    if unknown := [word for word in wanted if word not in PIECES]:
        _refuse(f"no piece {', '.join(unknown)}; there are {', '.join(PIECES)}")
    if lines := missing():
        _refuse("packages are missing: " + "; ".join(lines))
    from bench.gpu.pieces import Session  # needs the packages
    from fedapp.ground.errors import FedAppError

    try:
        with TemporaryDirectory(prefix="bench-") as away:
            folder = out or (Path(away) if toy else OUT)
            done = Session(folder, toy, tuple(given), deadline, numbers).carry_out(wanted)
    except FedAppError as error:
        _refuse(str(error))
    if not done:
        print("stopped in time; the same command goes on from here", flush=True)
        raise SystemExit(MORE)


def _refuse(reason: str) -> None:
    print(f"bench.gpu: {reason}", file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    typer.run(main)
