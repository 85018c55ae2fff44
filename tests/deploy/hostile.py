"""A registered site that answers every message with random megabytes, by Flower's own client.

    python hostile.py HOST:PORT CA KEY MEBIBYTES

With 0 it answers with a message that says it has parts, and sends none. It stands in the place of a
SuperNode: same key, so the same node. It says what came of each answer.
"""

import os
import sys
import time
from functools import partial
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import (
    pull_objects,
    push_object_contents_from_iterable,
)
from flwr.supernode.fleet_http_connection import http_request_response


def answered(conn, mebibytes):
    """Take a message if there is one, and answer it; return what to say of it."""
    _, receive, send, _, _, pull_object, push_object, confirm = conn
    if (got := receive()) is None:
        return ""
    message, tree = got
    run, number = message.metadata.run_id, message.metadata.message_id
    pull_objects([t.object_id for t in iterate_object_tree(tree)], partial(pull_object, run))
    confirm(run, number)
    message.__dict__["_content"] = RecordDict()
    blob = os.urandom(mebibytes * 2**20)
    model = Array(dtype="uint8", shape=(len(blob),), stype="safetensors", data=blob)
    content = {"heads": ConfigRecord({"message": b"{}"}), "models": ArrayRecord({"0" * 64: model})}
    reply = Message(RecordDict(content), reply_to=message)
    with no_object_id_recompute():
        reply.metadata.__dict__["_message_id"] = reply.object_id
        objects, tree = get_all_nested_objects(reply), get_object_tree(reply)
        if not mebibytes:
            del tree.children[:]
        try:
            wanted, session = send(reply, tree, 1.0)
        except httpx.HTTPStatusError as error:
            return f"refused with {error.response.status_code}"
        push_object_contents_from_iterable(
            ((name, one.deflate()) for name, one in objects.items() if name in wanted),
            push_object_fn=partial(push_object, run, session),
        )
    return f"taken: {mebibytes} MiB"


def main(address, ca, key, mebibytes):
    private = load_ssh_private_key(Path(key).read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    with http_request_response(address, False, ca, (private, private.public_key())) as conn:
        print("in", flush=True)
        while True:
            print(answered(conn, int(mebibytes)) or "nothing", flush=True)
            time.sleep(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
