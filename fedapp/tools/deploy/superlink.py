"""Flower's SuperLink, with a database that large models do not lock, and which says its version.

    python -m fedapp.tools.deploy.superlink OPTIONS...       OPTIONS: those of flower-superlink

Flower 1.41 gives whoever waits for the database 5 s, then answers 500, which ends runs, SuperExecs
and SuperNodes. Removing a delivered model of 250 MB can take as long, since Debian's SQLite first
writes zeros over it. Here it does not, and who must wait may wait a minute.
"""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from flwr.supercore import sql_mixin
from flwr.supercore.constant import SQLITE_PRAGMAS
from flwr.superlink import extensions
from flwr.superlink.cli import flower_superlink

from fedapp.tools.node.bundle import ABOUT, about, installed

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
    vars(extensions).update(configure_app=saying_which(extensions.configure_app))
    vars(sql_mixin).update(SQLITE_PRAGMAS=(*SQLITE_PRAGMAS, *PRAGMAS))
    flower_superlink()


if __name__ == "__main__":
    main()
