"""Flower's ClientApp: decode, work, encode. Every handler always answers.

A handler that raises or returns nothing would leave the round waiting, and a SuperNode deaf.

On a SuperNode this module runs in a new process for every message. It must not import torch, nor
must anything it imports: the site's work is done by the resident worker, which has it.
"""

import logging

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from client_app.refusals import refusal_of
from client_app.resident.caller import NoWorker, ask, worker_for
from fedapp.messages import wire

log = logging.getLogger("flwr")
app = ClientApp()


@app.query("hello")
@app.train("task")
def handle(message: Message, context: Context) -> Message:
    """Answer one request."""
    try:
        records = _answer(message, context)
    except Exception as error:
        records = wire.write_answer(refusal_of(error))
    return Message(records, reply_to=message)


def _answer(message: Message, context: Context) -> RecordDict:
    origin, request, payloads = wire.read_request(message.content)
    try:
        if (worker := worker_for(context)) is not None:
            return wire.pack_answer(*ask(worker, origin, request, payloads, message.metadata.ttl))
    except NoWorker as reason:
        log.warning("%s; this request is answered without a resident worker", reason)
    from client_app.work import answer  # with torch: not before it is needed

    return wire.write_answer(
        answer(context.run_config, context.node_config, origin, request, payloads)
    )
