"""Frames on the worker's socket: what is sent arrives, what is none or too large is refused."""

import json
import os
import socket
import struct
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_app.resident import frames
from client_app.resident.frames import Frame, peer, receive, send
from fedapp.core.errors import ProtocolError
from fedapp.protocol import flower_records


def soon():
    return time.monotonic() + 30


@pytest.fixture
def pair():
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with left, right:
        yield left, right


def carried(frame):
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with left, right:
        sender = threading.Thread(target=send, args=(left, frame, soon()))
        sender.start()
        found = receive(right, soon())
        sender.join()
    return found


def raw(pair, data):
    left, right = pair
    left.sendall(data)
    left.close()
    return receive(right, soon())


def head(size, count=0, magic=b"UMW1"):
    return struct.pack("!4sIH", magic, size, count)


def text(value):
    body = json.dumps(value).encode()
    return head(len(body)) + body


def test_the_limits_carry_every_message_that_the_wire_allows():
    assert frames.MAX_BLOBS >= flower_records.MAX_MODELS + 2
    assert frames.MAX_BLOB >= flower_records.MAX_MODEL_BYTES


@given(
    st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.booleans()),
    st.dictionaries(st.text(), st.binary(max_size=200), max_size=6),
)
def test_what_is_sent_arrives(inner, blobs):
    found = carried(Frame(inner, blobs))
    assert found == Frame(inner, blobs)
    assert list(found.blobs) == list(blobs)


def test_models_larger_than_any_buffer_arrive():
    frame = Frame({}, {"a": os.urandom(5 * 2**20), "empty": b"", "b": b"\0" * 2**22})
    assert carried(frame) == frame


def test_a_number_keeps_its_type():
    sent = {"partition-id": 2, "float": 2.0, "truth": True, "node": 2**64 - 1}
    found = carried(Frame(sent)).head
    assert found == sent
    assert [type(value) for value in found.values()] == [int, float, bool, int]


@pytest.mark.parametrize(("frame", "said"), [
    (Frame({"long": "x" * frames.MAX_HEAD}), "are allowed"),
    (Frame({}, {str(k): b"" for k in range(frames.MAX_BLOBS + 1)}), "are allowed"),
    (Frame({}, {"a": b"x" * 11}), "a blob of 11 bytes; at most 10"),
])  # fmt: skip
def test_what_is_over_a_limit_is_not_sent(pair, monkeypatch, frame, said):
    monkeypatch.setattr(frames, "MAX_BLOB", 10)
    with pytest.raises(ProtocolError, match=said):
        send(pair[0], frame, soon())
    pair[0].close()
    assert pair[1].recv(1) == b""


def blobs(names, sizes):
    body = json.dumps({"head": {}, "names": names}).encode()
    return head(len(body), len(names)) + body + sizes


@pytest.mark.parametrize(("data", "said"), [
    (head(2**32 - 1), "a frame with a head of 4294967295 bytes"),
    (head(2, 65535), "and 65535 blobs"),
    (blobs(["a"], b"\xff" * 8), "a blob of 18446744073709551615 bytes"),
    (blobs(["a", "a"], bytes(16)), "names and blobs do not match"),
    (head(2, magic=b"HTTP") + b"{}", "speaks something else"),
    (head(2) + b"\xff\xff", "cannot be read"),
    (head(200_000) + b"[" * 200_000, "cannot be read"),
    (text([]), "cannot be read"),
    (text({}), "cannot be read"),
    (text({"head": {}}), "cannot be read"),
    (text({"head": [], "names": []}), "names and blobs do not match"),
    (text({"head": {}, "names": ["a"]}), "names and blobs do not match"),
    (text({"head": {}, "names": 3}), "cannot be read"),
    (text({"head": {}, "names": [3]}), "cannot be read"),
])  # fmt: skip
def test_what_is_no_frame_is_refused(pair, data, said):
    with pytest.raises(ProtocolError, match=said):
        raw(pair, data)


@given(st.binary(max_size=300))
def test_noise_is_refused(noise):
    for data in (noise, b"UMW1" + noise):
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with pair[0], pair[1], pytest.raises((ProtocolError, ConnectionError)):
            raw(pair, data)


@pytest.mark.parametrize("cut", [0, 3, 10, 30, 45])
def test_a_frame_that_breaks_off_is_a_lost_connection(pair, cut):
    whole = blobs(["a"], struct.pack("!Q", 20) + bytes(20))
    with pytest.raises(ConnectionError, match="closed"):
        raw(pair, whole[:cut])


def test_silence_ends_when_the_time_is_over(pair):
    with pytest.raises(TimeoutError):
        receive(pair[0], time.monotonic() + 0.01)
    with pytest.raises(TimeoutError):
        receive(pair[0], time.monotonic() - 1)


def test_one_who_does_not_read_ends_when_the_time_is_over(pair):
    with pytest.raises(TimeoutError):
        send(pair[0], Frame({}, {"a": bytes(2**23)}), time.monotonic() + 0.05)


def test_the_peer_is_known(pair):
    assert peer(pair[0]) == (os.getpid(), os.geteuid())
