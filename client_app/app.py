"""Flower's ClientApp: decode, work, encode. Every handler always answers.

A handler that raises or returns nothing would leave the round waiting, and a SuperNode deaf.

On a SuperNode this module runs in a new process for every message. It must not import torch, nor
must anything it imports: the site's work is done by the resident worker, which has it.
"""

import logging
from collections.abc import Iterable

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from client_app.refusals import refusal_of
from client_app.resident.caller import NoWorker, ask, worker_for
from fedapp.core.errors import ConfigError
from fedapp.protocol import flower_records
from fedapp.protocol.messages import Hello

log = logging.getLogger("flwr")
app = ClientApp()
IDLE_MODS = {"secagg_mod", "secaggplus_mod"}
"""Flower's secure aggregation lets this app's messages pass unmasked, without a word."""


@app.query("hello")
@app.train("task")
def handle(message: Message, context: Context) -> Message:
    """Answer one request."""
    try:
        records = _answer(message, context)
    except Exception as error:
        records = flower_records.write_answer(refusal_of(error))
    return Message(records, reply_to=message)


@app.train("lot")
def handle_several(message: Message, context: Context) -> Message:
    """Answer tasks for several of the sites that this node simulates."""
    try:
        refuse_idle_mods(app._mods)
        from client_app.answering import answers  # with torch: a node of a simulation, which has it

        several = answers(
            context.run_config, context.node_config, *flower_records.read_tasks(message.content)
        )
        records = flower_records.write_answers(several)
    except Exception as error:
        records = flower_records.write_answer(refusal_of(error))
    return Message(records, reply_to=message)


def refuse_idle_mods(mods: Iterable[object]) -> None:
    """Refuse to work under a mod that would seem to protect. Raises ConfigError naming it."""
    for mod in mods:
        if (name := getattr(mod, "__name__", type(mod).__name__)) in IDLE_MODS:
            raise ConfigError(
                f"{name}: Flower's mod does nothing to this app's messages, so it protects "
                "nothing: take it out of the ClientApp, and set privacy.sums=masked"
            )


def _answer(message: Message, context: Context) -> RecordDict:
    refuse_idle_mods(app._mods)
    origin, request, payloads = flower_records.read_request(message.content)
    try:
        if (worker := worker_for(context)) is not None:
            return flower_records.pack_answer(
                *ask(worker, origin, request, payloads, message.metadata.ttl)
            )
    except NoWorker as reason:
        log.warning("%s; this request is answered without a resident worker", reason)
    from client_app.answering import answer, introductions  # with torch: not before it is needed

    if isinstance(request, Hello):
        said = introductions(context.run_config, context.node_config, origin, request)
        return (
            flower_records.write_answers(said)
            if len(said) > 1
            else flower_records.write_answer(said[0])
        )
    return flower_records.write_answer(
        answer(
            context.run_config, context.node_config, origin, request, payloads, asked=request.site
        )
    )
