"""Protocol messages <-> JSON bytes. Parsing is strict: only what is exactly right is accepted.

Simulations without a network encode and decode every message too, so that they test what travels.
"""

import json
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from fedapp.core.errors import ProtocolError
from fedapp.protocol.messages import (
    CLOSED,
    MAX_SETTINGS,
    READS,
    SCHEMA,
    Answer,
    Hello,
    Missing,
    Origin,
    Refusal,
    Reply,
    Request,
    SiteFacts,
    Task,
)

MAX_BYTES = 28 * 2**20
"""Maximum size of a head, the JSON part of a message. An honest one has a few kB, but twelve
confusion matrices of 1000 classes would be 24 MB."""
MAX_CONTAINERS = 2**14
"""Maximum number of JSON lists and objects in a head, since a list of three bytes takes sixty in
memory. Twelve confusion matrices of 1000 classes have 12,012."""

Body = TypeVar("Body")


@dataclass(frozen=True)
class _Head(Generic[Body]):
    """The JSON object that travels: a message's body with its kind and the schema version."""

    __pydantic_config__ = CLOSED

    schema: int
    kind: str
    body: Body


_KINDS: dict[str, TypeAdapter[Any]] = {
    kind.__name__: TypeAdapter(_Head[kind])  # type: ignore[valid-type]
    for kind in (Task, Hello, Reply, Missing, Refusal, SiteFacts, Origin)
}


def version_remedy(reads: tuple[int, int]) -> str:
    """Return the remedy for messages of another schema version than this side understands."""
    only = f"{reads[0]} to {reads[1]}" if reads[0] < reads[1] else f"{reads[0]}"
    return f"the other side understands {only}: install one version of fedapp on both sides"


def encode(message: Request | Answer | Origin) -> bytes:
    """Return the message as JSON, with its kind and the schema version.

    Raises ProtocolError if it holds NaN, infinity or a string that is not valid Unicode.
    """
    kind = type(message).__name__
    try:
        data = to_json({"schema": SCHEMA, "kind": kind, "body": message})
        if b"NaN" in data or b"Infinity" in data:  # as a number, or only inside a string
            json.loads(data, parse_constant=_no_number)
    except ValueError as error:
        raise ProtocolError(f"{kind} message cannot be sent: {error}") from error
    return data


def as_received(message: Body, head: bytes) -> Body:
    """Return a message as its receiver would get it. head: what `encode` has just returned for it.

    All values are checked as for a received message. Faults of foreign JSON, such as a duplicate
    key, are not looked for, since this process wrote the JSON itself. Raises ProtocolError.
    """
    _check_size(head)
    arrived: Body = _read(type(message).__name__, head)
    return arrived


def decode_request(data: bytes) -> Request:
    """Parse a request from the server. Raises ProtocolError naming the field and the rule."""
    message = _decode(data)
    if not isinstance(message, Request):
        raise ProtocolError(f"a request was due, {type(message).__name__} came")
    return message


def decode_answer(data: bytes) -> Answer:
    """Parse an answer from a site. Raises ProtocolError naming the field and the rule."""
    message = _decode(data)
    if not isinstance(message, Answer):
        raise ProtocolError(f"an answer was due, {type(message).__name__} came")
    return message


def decode_origin(data: bytes) -> Origin:
    """Parse the description of the server that comes with a request. Raises ProtocolError."""
    message = _decode(data)
    if not isinstance(message, Origin):
        raise ProtocolError(f"an origin was due, {type(message).__name__} came")
    return message


def _decode(data: bytes) -> Request | Answer | Origin:
    _check_size(data)
    try:
        # Pydantic parses the bytes again, and would silently take the last of duplicate keys.
        head = json.loads(data.decode(), object_pairs_hook=_object, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"message head is not JSON: {error}") from error
    if not isinstance(head, dict) or head.keys() != {"schema", "kind", "body"}:
        raise ProtocolError("message head must hold exactly schema, kind and body")
    schema, kind = head["schema"], head["kind"]
    if type(schema) is not int or not READS[0] <= schema <= READS[1]:
        found = schema if isinstance(schema, int | float) else type(schema).__name__
        raise ProtocolError(f"message schema {found}, {version_remedy(READS)}")
    if not isinstance(kind, str) or kind not in _KINDS:
        shown = kind if isinstance(kind, str) else type(kind).__name__
        raise ProtocolError(f"unknown message kind {shown[:40]!r}")
    message: Request | Answer | Origin = _read(kind, data)
    return message


def _check_size(data: bytes) -> None:
    if len(data) > MAX_BYTES:
        raise ProtocolError(f"message head of {len(data)} bytes; at most {MAX_BYTES} are allowed")
    if data.count(b"[") + data.count(b"{") > MAX_CONTAINERS:
        raise ProtocolError(f"message head of more than {MAX_CONTAINERS} lists and objects")


def _read(kind: str, data: bytes) -> Any:
    """Parse and validate a head of this kind; return the message."""
    try:
        return _KINDS[kind].validate_json(data, strict=True).body
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"][1:])  # the first one is "body"
        raise ProtocolError(f"{kind} message: {where}: {first['msg']}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object; refuse duplicate keys, which two readers could read differently."""
    if len(pairs) > MAX_SETTINGS:
        raise ValueError(f"an object of {len(pairs)} entries; at most {MAX_SETTINGS}")
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object names a key twice")
    return found


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no JSON")
