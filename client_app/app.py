"""Flower's ClientApp: decode, work, encode. Every handler always answers.

A handler that raises or returns nothing would leave the round waiting, and a SuperNode deaf.
"""

import logging
from dataclasses import replace
from functools import lru_cache

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from client_app.node import alone, open_site
from fedapp import wire
from fedapp.errors import FedAppError, ProtocolError, told
from fedapp.protocol import Hello, Incoming, Refusal

log = logging.getLogger("flwr")
app = ClientApp()


@app.query("hello")
@app.train("task")
def handle(message: Message, context: Context) -> Message:
    """Answer one request."""
    try:
        return Message(wire.write_answer(_answer(message, context)), reply_to=message)
    except FedAppError as error:
        reason = told(error)
        _say_once(str(error))
    except Exception as error:
        log.exception("a request could not be answered")
        reason = told(error)
    refusal = Incoming(Refusal(-1, 0, reason))
    return Message(wire.write_answer(refusal), reply_to=message)


@lru_cache(maxsize=256)
def _say_once(reason: str) -> None:
    """Log a reason once a process: in simulation a hundred sites may lack the same file."""
    log.error("%s", reason)


def _answer(message: Message, context: Context) -> Incoming:
    origin, request, payloads = wire.read_request(message.content)
    settings = request.settings if isinstance(request, Hello) else {}
    site, folder = open_site(context, origin, settings)
    if isinstance(request, Hello):
        return Incoming(site.facts())
    if request.site != (here := site.data.site):
        # Flower knows a node by its key: one restarted with another number still gets its tasks.
        raise ProtocolError(f"a task for site {request.site}, but this node is site {here} now")
    with alone(site, folder):
        incoming = site.handle(request, payloads)
    # The server finds the new model where it lies, in the pool.
    return replace(incoming, payloads={}) if site.shares_pool else incoming
