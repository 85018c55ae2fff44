"""Malformed letters on the resident worker's socket, in both directions, and no process in between.

To the worker: the real loop over one connection and the site's real work, but for the method. To
the message's process: what it makes of a worker that answers anything at all.
"""

import json
import logging
import socket
import time
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import pytest
from flwr.app import RecordDict
from flwr.common.serde import recorddict_to_proto
from hypothesis import strategies as st

from client_app.answering import SiteWork
from client_app.resident import caller as resident
from client_app.resident import worker
from client_app.resident.caller import NoWorker, Worker
from client_app.resident.frames import _PREFIX, _SIZE, Frame, receive, send
from fedapp.core.errors import ProtocolError
from fedapp.protocol import flower_records
from fedapp.protocol.codec import decode_answer, decode_origin, decode_request, encode
from fedapp.protocol.messages import Missing, Refusal
from tests.security.mutations import BYTES, HEADS, JSON, counts, damaged, fuzz, twisted
from tests.security.test_fuzz_site import Asked

COUNTS = counts(300, 22_000)
KEY = "the key"


def soon():
    return time.monotonic() + 30


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A site in a folder of its own, two below the test's: a damaged path leads nowhere else."""
    root = tmp_path_factory.mktemp("socket")
    here = root / "a" / "b"
    here.mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        # Whoever asks has sent all and waits; only that he hangs up at once must not count here.
        patch.setattr(worker, "_ending_with_peer", lambda *_: nullcontext())
        level = logging.getLogger("flwr").level
        logging.getLogger("flwr").setLevel(logging.CRITICAL)
        yield Asked(root, patch)
        logging.getLogger("flwr").setLevel(level)


@contextmanager
def line():
    """Yield two ends of a connection whose buffers hold every frame of these tests."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with left, right:
        for end in (left, right):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**22)
        yield left, right


def written(frame):
    """Return the bytes of a frame, its head and its blobs apart."""
    head = json.dumps({"head": frame.head, "names": list(frame.blobs)}).encode()
    return head, [_SIZE.pack(len(blob)) + blob for blob in frame.blobs.values()]


NOISE = st.tuples(st.just("any bytes"), st.binary(min_size=16, max_size=200))
SIZES = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**16 - 1))
PREFIX = st.tuples(st.just("prefix"), SIZES)
CASES = st.one_of(
    st.tuples(st.just("bytes"), BYTES),
    st.tuples(st.just("head"), JSON),
    st.tuples(st.just("blobs"), st.tuples(st.integers(0, 2), BYTES)),
    st.tuples(st.just("any head"), HEADS),
    NOISE,
    NOISE.map(lambda case: (case[0], b"UMW1" + case[1])),
    PREFIX,
)


def spoilt(case, frame, plausible):
    """Return the bytes of a frame after a case's damage."""
    level, edits = case
    if level == "any bytes":
        return edits
    head, blobs = written(frame)
    size, count = len(head), len(blobs)
    if level == "any head":
        head, size = edits, len(edits)
    elif level == "head":
        head = twisted(json.loads(head), edits, plausible)
        size = len(head)
    elif level == "blobs" and blobs:
        which, inner = edits
        which %= len(blobs)
        content = damaged(blobs[which][_SIZE.size :], inner)
        blobs[which] = _SIZE.pack(len(content)) + content
    elif level == "prefix":
        size, count = edits
    data = _PREFIX.pack(b"UMW1", size, count) + head + b"".join(blobs)
    if level == "blobs" and not blobs:
        return damaged(data, edits[1])
    return damaged(data, edits) if level == "bytes" else data


PLAUSIBLE = [0, 1, 2, "partition-id", "store-path", "preset", "site-name", "data-path", "key", KEY,
             "stale", "message", "origin", "0" * 64, "head", "names", [], {}, ["message"],
             "seed", "runtime.out", "state"]  # fmt: skip


@pytest.mark.parametrize("examples", COUNTS)
@pytest.mark.parametrize("kind", ["first", "request"])
def test_letters_to_the_worker(site, kind, examples):
    place = worker.Address(Path("socket"), Path("lock"), KEY, 600.0, 0, ())
    own = {"partition-id": 2, "store-path": "store", "no-terms": True}
    node = {"run_id": 1, "node_id": 7, "node_config": own,
            "run_config": {"preset": str(site.root / f"{site.experiment.name}.yaml")}}  # fmt: skip
    heads = {"origin": encode(site.origin), "message": encode(site.task)}
    letters = {
        "first": Frame({"key": KEY}),
        "request": Frame(node, {**heads, site.helper.digest: site.blob}),
    }

    def said(data):
        """Return the letters with which the worker answers these bytes, and whether it goes on."""
        with line() as (left, right):
            left.sendall(data)
            left.shutdown(socket.SHUT_WR)
            goes_on = worker._serve_one(right, place, SiteWork())
            right.shutdown(socket.SHUT_WR)
            found = []
            with suppress(ConnectionError):
                while True:
                    found.append(receive(left, soon()))
        return found, goes_on

    def read(data):
        """Return the frame that these bytes are."""
        with line() as (left, right):
            left.sendall(data)
            return receive(right, soon())

    def whole(name):
        head, blobs = written(letters[name])
        return _PREFIX.pack(b"UMW1", len(head), len(blobs)) + head + b"".join(blobs)

    def build(case):
        data = spoilt(case, letters[kind], PLAUSIBLE)
        return data + whole("request") if kind == "first" else whole("first") + data

    def refuses(data):
        found, goes_on = said(data)
        assert len(found) <= 2
        if found and kind == "first":
            assert (found[0].head == {"stale": ""}) == (read(data).head.get("key") == KEY)
        if len(found) < 2:
            return True
        answer = decode_answer(found[1].blobs["message"])
        assert goes_on != isinstance(answer, Refusal)  # a worker ends after a refusal
        if isinstance(answer, Refusal):
            return True
        if kind == "request":
            frame = read(data[len(whole("first")) :])
            origin = decode_origin(frame.blobs["origin"])
            site.judge(origin, decode_request(frame.blobs["message"]), answer)
        return False

    assert len(said(whole("first") + whole("request"))[0]) == 2
    fuzz(f"frame to the worker, {kind}", examples, CASES, build, refuses)


class Line:
    """The message's side of a connection, without a process that could be killed."""

    pid = 4711

    def __init__(self, connection):
        self.connection = connection
        self.killed = False

    def kill(self):
        self.killed = True

    def close(self):
        pass


@pytest.mark.parametrize("examples", COUNTS)
@pytest.mark.parametrize("kind", ["first", "answer"])
def test_letters_from_the_worker(site, monkeypatch, kind, examples):
    node = Worker(Path("."), "1a", KEY, {}, 600.0, 1)
    blob = b"model" * 9
    missing = Missing(2, 5, (site.helper.digest,))
    frame = {
        "first": Frame({"stale": ""}),
        "answer": Frame({}, {"message": encode(missing), "a" * 64: blob}),
    }[kind]
    monkeypatch.setattr(resident, "_exclusive", lambda _: nullcontext())

    def refuses(data):
        with line() as (left, right):
            left.sendall(data)
            left.shutdown(socket.SHUT_WR)
            mine = Line(right)
            if kind == "first":
                monkeypatch.setattr(resident, "_Connection", lambda _: mine)
                found = resident._reach(node, soon())
                assert (found is None) == mine.killed
                return found is None
            monkeypatch.setattr(resident, "_connected", lambda *_: nullcontext(mine))
            try:
                message, contents = resident.ask(node, site.origin, site.task, {}, 30.0)
            except NoWorker:
                assert mine.killed
                return True
        # What passes is an answer that Flower can carry; the server judges it as any other.
        decode_answer(message)
        records = flower_records.pack_answer(message, contents)
        assert isinstance(records, RecordDict)
        recorddict_to_proto(records).SerializeToString()
        return False

    head, blobs = written(frame)
    assert not refuses(_PREFIX.pack(b"UMW1", len(head), len(blobs)) + head + b"".join(blobs))
    fuzz(
        f"frame from the worker, {kind}",
        examples,
        CASES,
        lambda case: spoilt(case, frame, PLAUSIBLE),
        refuses,
    )


def test_a_name_that_flower_could_not_carry_is_refused():
    for names in ("ab", {"a": 1, "b": 2}, ["a", "\ud800"]):
        head = json.dumps({"head": {}, "names": names}).encode()
        with line() as (left, right):
            left.sendall(_PREFIX.pack(b"UMW1", len(head), 2) + head + bytes(16))
            with pytest.raises(ProtocolError, match="head of a frame"):
                receive(right, soon())


def test_a_letter_is_written_here_as_it_is_sent():
    frame = Frame({"a": 1}, {"b": b"12", "c": b""})
    head, blobs = written(frame)
    with line() as (left, right):
        send(left, frame, soon())
        left.shutdown(socket.SHUT_WR)
        sent = b"".join(iter(lambda: right.recv(2**16), b""))
    assert sent == _PREFIX.pack(b"UMW1", len(head), 2) + head + b"".join(blobs)
