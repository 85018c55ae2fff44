"""What travels between a message's process and the resident worker: bytes over a Unix socket.

A frame is a small JSON head and named blobs. Sizes come first and are checked before anything is
read; nothing is pickled. Both ends are processes of one user on one machine, which each verifies.
"""

import json
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedapp.core.errors import ProtocolError

MAX_HEAD = 2**20
"""Bytes of the JSON head: the node's and the run's settings and the blobs' names."""
MAX_BLOBS = 130
"""The models of one of Flower's messages (`protocol.MAX_MODELS`), and the two texts beside them."""
MAX_BLOB = 2**30
"""Bytes: `wire.MAX_MODEL_BYTES`. Not imported from there: that would take a second."""

_MAGIC = b"UMW1"
_PREFIX = struct.Struct("!4sIH")
_SIZE = struct.Struct("!Q")
_PEER = struct.Struct("3i")
_CHUNK = 2**20


@dataclass(frozen=True)
class Frame:
    """A head that JSON can hold, and bytes by name."""

    head: Mapping[str, Any]
    blobs: Mapping[str, bytes] = field(default_factory=dict)


def send(connection: socket.socket, frame: Frame, end: float) -> None:
    """Send a frame by the time `end` (of time.monotonic).

    Raises TimeoutError, ConnectionError where the peer is gone, and ProtocolError where the frame
    is over a limit; nothing is sent then.
    """
    head = json.dumps({"head": frame.head, "names": list(frame.blobs)}).encode()
    _within(len(head), len(frame.blobs), map(len, frame.blobs.values()))
    connection.settimeout(_left(end))
    connection.sendall(_PREFIX.pack(_MAGIC, len(head), len(frame.blobs)) + head)
    for blob in frame.blobs.values():
        connection.settimeout(_left(end))
        connection.sendall(_SIZE.pack(len(blob)))
        connection.sendall(blob)


def receive(connection: socket.socket, end: float) -> Frame:
    """Read a frame by the time `end` (of time.monotonic).

    Raises TimeoutError, ConnectionError where the peer is gone, and ProtocolError where what comes
    is no frame or over a limit.
    """
    magic, size, count = _PREFIX.unpack(_exactly(connection, _PREFIX.size, end))
    if magic != _MAGIC:
        raise ProtocolError("the peer on the worker's socket speaks something else")
    _within(size, count, ())
    try:
        head = json.loads(_exactly(connection, size, end))
        inner, names = head["head"], head["names"]
        known = isinstance(inner, dict) and isinstance(names, list)
        for name in names:
            name.encode()  # a name that no other message could carry is none
        if not known or len({*names}) != count or len(names) != count:
            raise ValueError("names and blobs do not match")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ProtocolError(f"the head of a frame cannot be read: {error}") from error
    blobs = {}
    for name in names:
        [length] = _SIZE.unpack(_exactly(connection, _SIZE.size, end))
        _within(0, 0, (length,))
        blobs[name] = _exactly(connection, length, end)
    return Frame(inner, blobs)


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return process and user of the other end: of a listener, the process that began to listen."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    pid, user, _group = _PEER.unpack(found)
    return pid, user


def _within(head: int, count: int, blobs: Any) -> None:
    if head > MAX_HEAD or count > MAX_BLOBS:
        raise ProtocolError(
            f"a frame with a head of {head} bytes and {count} blobs; at most {MAX_HEAD} and "
            f"{MAX_BLOBS} are allowed"
        )
    if (longest := max(blobs, default=0)) > MAX_BLOB:
        raise ProtocolError(f"a blob of {longest} bytes; at most {MAX_BLOB} are allowed")


def _exactly(connection: socket.socket, size: int, end: float) -> bytes:
    """Read so many bytes; memory grows with what has come, not with what was announced."""
    parts = bytearray()
    while len(parts) < size:
        connection.settimeout(_left(end))
        part = connection.recv(min(_CHUNK, size - len(parts)))
        if not part:
            raise ConnectionError("the peer closed the connection")
        parts += part
    return bytes(parts)


def _left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError("the time is over")
    return min(left, 1e6)  # what the kernel's timers hold
