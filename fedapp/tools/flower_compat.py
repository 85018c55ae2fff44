"""The four places where this project replaces a private part of Flower, and their contracts.

Flower 1.41 has no public way to ask a question before an app is installed, to learn that the
server acknowledged a heartbeat, to serve one more page, or to wait longer for a locked database.
So in a process that this project started, a name in one of Flower's modules gets another value.

If a later Flower no longer used the name, the replacement would silently do nothing, and a site
would run apps that nobody approved. Therefore `Seam.replace` first checks that Flower still uses
the name as it did, and raises an error otherwise.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from flwr.app import Error, Message
from flwr.supercore.version import package_version

from fedapp.core.errors import RunError


@dataclass(frozen=True)
class Seam:
    """A name in one of Flower's modules that gets another value.

    module, name: where the name is defined. user: the function of Flower that looks the name up
    when it runs, as "module:function". arguments: those of Flower's own function that a replacement
    relies on; empty if the name is not a function's.
    """

    module: str
    name: str
    user: str
    arguments: frozenset[str] = frozenset()

    def original(self) -> Any:
        """Return Flower's own value of the name. Raises RunError if the contract does not hold."""
        home, _, function = self.user.partition(":")
        try:
            found = getattr(import_module(self.module), self.name)
            user = inspect.unwrap(getattr(import_module(home), function))
        except (ImportError, AttributeError) as error:
            raise self._other(str(error)) from error
        if self.name not in user.__code__.co_names:
            raise self._other(f"{self.user} does not use {self.name}")
        if missing := self.arguments - set(self._parameters(found)):
            raise self._other(f"{self.module}.{self.name} takes no {', '.join(sorted(missing))}")
        return found

    def replace(self, value: object) -> None:
        """Give the name another value in this process. Raises RunError as `original` does."""
        self.original()
        vars(import_module(self.module))[self.name] = value

    @staticmethod
    def _parameters(found: object) -> list[str]:
        return list(inspect.signature(found).parameters) if callable(found) else []

    @staticmethod
    def _other(what: str) -> RunError:
        return RunError(
            f"Flower {package_version} is not the Flower that this program was made for: {what}; "
            "install the release that pyproject.toml names"
        )


_SUPERNODE = "flwr.supernode.start_client_internal"
PULL_A_MESSAGE = Seam(
    _SUPERNODE,
    "_pull_and_store_message",
    f"{_SUPERNODE}:start_client_internal",
    frozenset({"state", "object_store", "receive", "get_run", "get_fab"}),
)
"""Pulls one message and, for a new run, its app, which the SuperNode installs and starts later."""
FLEET_CLIENT = Seam(
    "flwr.supernode.fleet_http_connection",
    "FleetHttpClient",
    "flwr.supernode.fleet_http_connection:http_request_response",
)
"""The class through which a SuperNode talks to its server."""
SERVER_PAGES = Seam(
    "flwr.superlink.extensions",
    "configure_app",
    "flwr.superlink.main:create_app",
    frozenset({"app"}),
)
"""Adds pages to those of a SuperLink."""
DATABASE_PRAGMAS = Seam(
    "flwr.supercore.sql_mixin", "SQLITE_PRAGMAS", "flwr.supercore.sql_mixin:_set_sqlite_pragmas"
)
"""Pairs of name and value with which a SuperLink's database is opened."""
_ANSWER = Seam(
    _SUPERNODE,
    "_insert_message",
    f"{_SUPERNODE}:{PULL_A_MESSAGE.name}",
    frozenset({"msg", "state", "store"}),
)
"""Stores a message of the SuperNode until it is sent. It is called here, not replaced."""
SEAMS = (PULL_A_MESSAGE, FLEET_CLIENT, SERVER_PAGES, DATABASE_PRAGMAS, _ANSWER)


def answer_with_error(message: Message, error: Error, state: object, store: object) -> None:
    """Answer a message that a SuperNode received with an error, which its loop sends to the server.

    state, store: those that Flower gave to the function that received the message.
    """
    insert: Callable[..., None] = _ANSWER.original()
    insert(msg=Message(error, reply_to=message), state=state, store=store)
