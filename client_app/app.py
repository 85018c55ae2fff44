"""Flower's ClientApp: decode, work, encode. Every handler always answers.

A handler that raises or returns nothing would leave the round waiting, and a SuperNode deaf.
"""

import logging

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from client_app.node import open_site
from fedapp import wire
from fedapp.protocol import Hello, Incoming, Refusal

log = logging.getLogger("flwr")
app = ClientApp()


@app.query("hello")
@app.train("task")
def handle(message: Message, context: Context) -> Message:
    """Answer one request."""
    try:
        origin, request, payloads = wire.read_request(message.content)
        site = open_site(context, origin)
        if isinstance(request, Hello):
            incoming = Incoming(site.facts())
        else:
            incoming = site.handle(request, payloads)
    except Exception as error:
        log.exception("request not understood")
        reason = f"{type(error).__name__}: {error}"[:4000]
        incoming = Incoming(Refusal(-1, 0, reason))
    return Message(wire.write_answer(incoming), reply_to=message)
