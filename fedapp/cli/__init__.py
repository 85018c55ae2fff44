"""The command `fedapp`: one module for each panel of its help.

Each command imports what it needs inside its function, because importing torch takes seconds:
neither `fedapp --help` nor completion in a shell can wait for that.
"""

import sys

from fedapp.cli.shared import app
from fedapp.core.errors import FedAppError
from fedapp.core.process_tuning import tune_own_process

# isort: off
# Importing a module registers its commands. `fedapp --help` shows the panels in this order.
from fedapp.cli import run, look, use, compare, join, set_up  # noqa: F401
# isort: on

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line: an error that a person can mend is one line, with exit code 2."""
    tune_own_process()
    try:
        app()
    except FedAppError as error:
        print(f"fedapp: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    except OSError as error:
        if error.filename is None:
            raise  # nothing that another path would mend
        denied = isinstance(error, PermissionError)
        remedy = "let this user read or write it" if denied else "name another path"
        print(f"fedapp: {error.filename}: {error.strerror}: {remedy}", file=sys.stderr)
        raise SystemExit(2) from error
