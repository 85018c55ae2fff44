"""Protocol messages <-> Flower records.

A message is one ConfigRecord with the JSON heads and, if contents travel with it, one ArrayRecord
with one flat uint8 array per model: its safetensors bytes, under its digest. Nothing is pickled and
nothing is copied. (A model as many arrays would be many times slower, since Flower sends one
request per object.)

A node that simulates several sites gets several tasks in one message and answers in the same way:
with a list of heads and without contents, since it works on the server's pool of models.
"""

from collections.abc import Mapping, Sequence

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedapp.core.errors import ProtocolError
from fedapp.protocol.codec import decode_answer, decode_origin, decode_request, encode
from fedapp.protocol.messages import MAX_ENTRIES, MAX_MODELS, Incoming, Origin, Request

MAX_MODEL_BYTES = 2**30
"""Maximum size of one content; the receiver also compares it with the size of the model."""

MAX_BATCH = 2**16
"""Maximum number of tasks, or answers, in one message."""

_HEADS = "heads"
_MODELS = "models"
_STYPE = "safetensors"


def write_request(origin: Origin, request: Request, payloads: Mapping[str, bytes]) -> RecordDict:
    """Return the records of a request and its contents."""
    return pack_request(origin, encode(request), payloads)


def pack_request(origin: Origin, message: bytes, payloads: Mapping[str, bytes]) -> RecordDict:
    """Return the records of a request that has been encoded already."""
    heads = ConfigRecord({"origin": encode(origin), "message": message})
    return _records(heads, payloads)


def write_answer(incoming: Incoming) -> RecordDict:
    """Return the records of an answer and its contents."""
    return pack_answer(encode(incoming.answer), incoming.payloads)


def pack_answer(message: bytes, payloads: Mapping[str, bytes]) -> RecordDict:
    """Return the records of an answer that another process of the site has encoded."""
    return _records(ConfigRecord({"message": message}), payloads)


def read_request(records: RecordDict) -> tuple[Origin, Request, dict[str, bytes]]:
    """Parse a request. Raises ProtocolError."""
    heads, payloads = _message_parts(records, {"origin", "message"}, MAX_MODELS)
    return decode_origin(heads["origin"]), decode_request(heads["message"]), payloads


def read_answer(records: RecordDict) -> Incoming:
    """Parse an answer. Raises ProtocolError."""
    heads, payloads = _message_parts(records, {"message"}, MAX_ENTRIES)  # one of each role
    return Incoming(decode_answer(heads["message"]), payloads, len(heads["message"]))


def pack_tasks(origin: Origin, messages: Sequence[bytes]) -> RecordDict:
    """Return the records of several tasks that have been encoded already."""
    return _records(ConfigRecord({"origin": encode(origin), "messages": list(messages)}), {})


def read_tasks(records: RecordDict) -> tuple[Origin, list[Request]]:
    """Parse several tasks. Raises ProtocolError."""
    origin, messages = _batch_parts(records, "origin")
    return decode_origin(origin), [decode_request(message) for message in messages]


def write_answers(answers: Sequence[Incoming]) -> RecordDict:
    """Return the records of several answers whose contents are in the server's pool."""
    return _records(ConfigRecord({"messages": [encode(one.answer) for one in answers]}), {})


def read_answers(records: RecordDict) -> list[Incoming]:
    """Parse one answer or several. Raises ProtocolError."""
    heads = records.get(_HEADS)
    if not isinstance(heads, ConfigRecord) or "messages" not in heads:
        return [read_answer(records)]
    _, messages = _batch_parts(records, "")
    return [Incoming(decode_answer(message), {}, len(message)) for message in messages]


def _batch_parts(records: RecordDict, first: str) -> tuple[bytes, list[bytes]]:
    """Return the head named `first`, if that is not empty, and the list of heads."""
    config = records.get(_HEADS)
    wanted = {first, "messages"} - {""}
    if records.keys() != {_HEADS} or not isinstance(config, ConfigRecord):
        raise ProtocolError(f"message holds records {sorted(records)}, must be heads alone")
    if config.keys() != wanted:
        raise ProtocolError(f"record {_HEADS!r} must hold {sorted(wanted)}")
    head, found = config.get(first, b""), config["messages"]
    if not isinstance(head, bytes) or not isinstance(found, list):
        raise ProtocolError(f"record {_HEADS!r} must hold bytes and a list of bytes")
    messages = [message for message in found if isinstance(message, bytes)]
    if not len(messages) == len(found) <= MAX_BATCH:
        raise ProtocolError(f"{len(found)} messages in one; at most {MAX_BATCH}, all bytes")
    return head, messages


def _records(heads: ConfigRecord, payloads: Mapping[str, bytes]) -> RecordDict:
    records = RecordDict({_HEADS: heads})
    if payloads:
        records[_MODELS] = ArrayRecord(
            {
                digest: Array(dtype="uint8", shape=(len(blob),), stype=_STYPE, data=blob)
                for digest, blob in payloads.items()
            }
        )
    return records


def _message_parts(
    records: RecordDict, heads: set[str], models: int
) -> tuple[dict[str, bytes], dict[str, bytes]]:
    if not {_HEADS} <= records.keys() <= {_HEADS, _MODELS}:
        raise ProtocolError(f"message holds records {sorted(records)}, must be heads and models")
    config = records[_HEADS]
    if not isinstance(config, ConfigRecord) or config.keys() != heads:
        raise ProtocolError(f"record {_HEADS!r} must be a ConfigRecord with {sorted(heads)}")
    found = {name: value for name, value in config.items() if isinstance(value, bytes)}
    if found.keys() != heads:
        raise ProtocolError(f"record {_HEADS!r} must hold bytes")
    return found, _payloads(records.get(_MODELS, ArrayRecord()), models)


def _payloads(arrays: object, most: int) -> dict[str, bytes]:
    if not isinstance(arrays, ArrayRecord):
        raise ProtocolError(f"record {_MODELS!r} must be an ArrayRecord")
    if len(arrays) > most:
        raise ProtocolError(f"{len(arrays)} models in one message; at most {most}")
    for name, array in arrays.items():
        size = len(array.data)
        if size > MAX_MODEL_BYTES:
            raise ProtocolError(f"model {name[:12]}: {size} bytes; at most {MAX_MODEL_BYTES}")
        if array.dtype != "uint8" or array.stype != _STYPE or tuple(array.shape) != (size,):
            raise ProtocolError(
                f"model {name[:12]}: {array.stype} {array.dtype} {tuple(array.shape)}, must be one "
                f"flat {_STYPE} uint8 array of its {size} bytes"
            )
    return {name: array.data for name, array in arrays.items()}
