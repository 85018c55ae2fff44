"""Runs Flower's SuperLink with a database that large models do not block and a page of its version.

    python -m fedapp.tools.deploy.superlink OPTIONS...       OPTIONS: those of flower-superlink

In Flower 1.41 a request that waits longer than 5 s for the database is answered with status 500,
which ends runs, SuperExecs and SuperNodes. Removing a delivered model of 250 MB can take that long,
because Debian's SQLite first overwrites it with zeros. Here nothing is overwritten, and a request
may wait for a minute.
"""

import sys
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from flwr.superlink.cli import flower_superlink

from fedapp.core.errors import RunError
from fedapp.tools.flower_compat import DATABASE_PRAGMAS, SERVER_PAGES
from fedapp.tools.node.app_bundle import ABOUT, about, installed

PRAGMAS = (("busy_timeout", "60000"), ("secure_delete", "FAST"))


def saying_which(configure: Callable[[FastAPI], None]) -> Callable[[FastAPI], None]:
    """Wrap Flower's `configure_app`, which then adds a page that names the installed app."""

    def configured(app: FastAPI) -> None:
        configure(app)
        app.add_api_route(ABOUT, _about, methods=["GET"])

    return configured


async def _about() -> dict[str, Any]:
    return about(installed())


def main() -> None:
    """Run the SuperLink with both replacements."""
    try:
        SERVER_PAGES.replace(saying_which(SERVER_PAGES.original()))
        DATABASE_PRAGMAS.replace((*DATABASE_PRAGMAS.original(), *PRAGMAS))
    except RunError as error:
        sys.exit(f"error: {error}")
    flower_superlink()


if __name__ == "__main__":
    main()
