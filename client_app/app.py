"""Flower's ClientApp: it decodes a message, has the work done and encodes the answer.

Every handler always answers. After one that raises or returns nothing, the server would wait until
the deadline, and the SuperNode would take no further message.

On a SuperNode this module runs in a new process for every message. Neither this module nor what it
imports may import torch, which takes seconds: the resident worker has torch and does the work.
"""

import logging
from collections.abc import Iterable

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from client_app.refusals import refusal_of, show_own_lines
from client_app.resident.caller import NoWorker, ask, worker_for
from fedapp.core.errors import ConfigError
from fedapp.protocol import flower_records
from fedapp.protocol.messages import Hello

log = logging.getLogger("flwr")
show_own_lines()
app = ClientApp()
MODS_WITHOUT_EFFECT = {"secagg_mod", "secaggplus_mod"}
"""Flower's mods for secure aggregation: they pass this app's messages on unmasked."""


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
        refuse_mods_without_effect(app._mods)
        from client_app.answering import answers  # with torch: a node of a simulation, which has it

        several = answers(
            context.run_config, context.node_config, *flower_records.read_tasks(message.content)
        )
        records = flower_records.write_answers(several)
    except Exception as error:
        records = flower_records.write_answer(refusal_of(error))
    return Message(records, reply_to=message)


def refuse_mods_without_effect(mods: Iterable[object]) -> None:
    """Raise ConfigError if a mod is installed that seems to protect messages and does not."""
    for mod in mods:
        if (name := getattr(mod, "__name__", type(mod).__name__)) in MODS_WITHOUT_EFFECT:
            raise ConfigError(
                f"{name}: Flower's mod does nothing to this app's messages, so it protects "
                "nothing: take it out of the ClientApp, and set privacy.sums=masked"
            )


def _answer(message: Message, context: Context) -> RecordDict:
    refuse_mods_without_effect(app._mods)
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
