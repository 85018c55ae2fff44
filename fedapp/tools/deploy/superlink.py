"""Flower's SuperLink, with a database that large models do not lock, and which says its version.

    python -m fedapp.tools.deploy.superlink OPTIONS...       OPTIONS: those of flower-superlink

Flower 1.41 gives whoever waits for the database 5 s, then answers 500, which ends runs, SuperExecs
and SuperNodes. Removing a delivered model of 250 MB can take as long, since Debian's SQLite first
writes zeros over it. Here it does not, and who must wait may wait a minute.
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
    """Return Flower's function of that name, with a page more: which app is installed here."""

    def configured(app: FastAPI) -> None:
        configure(app)
        app.add_api_route(ABOUT, _about, methods=["GET"])

    return configured


async def _about() -> dict[str, Any]:
    return about(installed())


def main() -> None:
    """Run the SuperLink."""
    try:
        SERVER_PAGES.replace(saying_which(SERVER_PAGES.original()))
        DATABASE_PRAGMAS.replace((*DATABASE_PRAGMAS.original(), *PRAGMAS))
    except RunError as error:
        sys.exit(f"error: {error}")
    flower_superlink()


if __name__ == "__main__":
    main()
