"""The command `fedapp`: a module for each panel of its help, which has the panel's commands.

Each command imports what it needs itself: torch takes seconds, which neither `--help` nor the
completion in a shell can wait for.
"""

import sys

from fedapp.cli.shared import app
from fedapp.core.errors import FedAppError
from fedapp.core.process_tuning import process_is_ours

# isort: off
# A module that is imported adds its commands: this is the order of the panels.
from fedapp.cli import run, look, use, compare, join, set_up  # noqa: F401
# isort: on

__all__ = ["app", "main"]


def main() -> None:
    """Entry point: what a person can mend is one line and exit code 2."""
    process_is_ours()
    try:
        app()
    except FedAppError as error:
        print(f"fedapp: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    except OSError as error:
        if error.filename is None:
            raise  # nothing that another path would mend
        print(f"fedapp: {error.filename}: {error.strerror}: name another path", file=sys.stderr)
        raise SystemExit(2) from error
