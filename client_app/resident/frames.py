"""Frames: what the process of a message and the resident worker send each other by a Unix socket.

A frame is a small JSON head and named blobs. Every size is sent first and is checked before the
bytes are read. Nothing is pickled. Both ends are processes of one user on one machine, and each end
verifies that.
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
"""Most bytes of the JSON head: the node's and the run's settings, and the names of the blobs."""
MAX_BLOBS = 130
"""Most blobs of a frame: the models of one of Flower's messages (`MAX_MODELS`) and two texts."""
MAX_BLOB = 2**30
"""Most bytes of a blob: `MAX_MODEL_BYTES` of the protocol, whose import would take a second."""

_MAGIC = b"UMW1"
_PREFIX = struct.Struct("!4sIH")
_SIZE = struct.Struct("!Q")
_PEER = struct.Struct("3i")
_CHUNK = 2**20


@dataclass(frozen=True)
class Frame:
    """A head of JSON values, and blobs of bytes by name."""

    head: Mapping[str, Any]
    blobs: Mapping[str, bytes] = field(default_factory=dict)


def send(connection: socket.socket, frame: Frame, end: float) -> None:
    """Send a frame until the time `end` (of time.monotonic).

    Raises TimeoutError, ConnectionError if the peer is gone, and ProtocolError if the frame exceeds
    a limit; then nothing is sent.
    """
    head = json.dumps({"head": frame.head, "names": list(frame.blobs)}).encode()
    _check_limits(len(head), len(frame.blobs), map(len, frame.blobs.values()))
    connection.settimeout(_seconds_left(end))
    connection.sendall(_PREFIX.pack(_MAGIC, len(head), len(frame.blobs)) + head)
    for blob in frame.blobs.values():
        connection.settimeout(_seconds_left(end))
        connection.sendall(_SIZE.pack(len(blob)))
        connection.sendall(blob)


def receive(connection: socket.socket, end: float) -> Frame:
    """Read a frame until the time `end` (of time.monotonic).

    Raises TimeoutError, ConnectionError if the peer is gone, and ProtocolError if what comes is no
    frame or exceeds a limit.
    """
    magic, size, count = _PREFIX.unpack(_read_exactly(connection, _PREFIX.size, end))
    if magic != _MAGIC:
        raise ProtocolError("the peer on the worker's socket speaks something else")
    _check_limits(size, count, ())
    try:
        head = json.loads(_read_exactly(connection, size, end))
        inner, names = head["head"], head["names"]
        known = isinstance(inner, dict) and isinstance(names, list)
        for name in names:
            name.encode()  # refuses lone surrogates, which JSON can hold and UTF-8 cannot
        if not known or len({*names}) != count or len(names) != count:
            raise ValueError("names and blobs do not match")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ProtocolError(f"the head of a frame cannot be read: {error}") from error
    blobs = {}
    for name in names:
        [length] = _SIZE.unpack(_read_exactly(connection, _SIZE.size, end))
        _check_limits(0, 0, (length,))
        blobs[name] = _read_exactly(connection, length, end)
    return Frame(inner, blobs)


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return process and user of the other end; of a listener, the process that called listen()."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    pid, user, _group = _PEER.unpack(found)
    return pid, user


def _check_limits(head: int, count: int, blobs: Any) -> None:
    if head > MAX_HEAD or count > MAX_BLOBS:
        raise ProtocolError(
            f"a frame with a head of {head} bytes and {count} blobs; at most {MAX_HEAD} and "
            f"{MAX_BLOBS} are allowed"
        )
    if (longest := max(blobs, default=0)) > MAX_BLOB:
        raise ProtocolError(f"a blob of {longest} bytes; at most {MAX_BLOB} are allowed")


def _read_exactly(connection: socket.socket, size: int, end: float) -> bytes:
    """Read `size` bytes. Memory grows with what has come, not with the announced size."""
    parts = bytearray()
    while len(parts) < size:
        connection.settimeout(_seconds_left(end))
        part = connection.recv(min(_CHUNK, size - len(parts)))
        if not part:
            raise ConnectionError("the peer closed the connection")
        parts += part
    return bytes(parts)


def _seconds_left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError("the time is over")
    return min(left, 1e6)  # so that no kernel timer overflows
