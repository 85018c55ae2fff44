"""Flower's SuperNode as `fedapp node`'s child: what it tells, and when it ends."""

import io
import signal
import subprocess
import sys

import httpx
import pytest
from flwr.proto.fleet_pb2 import ActivateNodeRequest, ActivateNodeResponse, PullMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest, SendNodeHeartbeatResponse

from fedapp.tools.node.supernode import telling


def client(told, status, body=b""):
    made = telling(told)("https://here")
    answer = httpx.MockTransport(lambda request: httpx.Response(status, content=body))
    made._client = httpx.Client(transport=answer)
    return made


@pytest.mark.parametrize(("success", "said"), [(True, b"+"), (False, b"")])
def test_it_tells_of_heartbeats_that_the_server_acknowledges(success, said):
    told = io.BytesIO()
    body = SendNodeHeartbeatResponse(success=success).SerializeToString()
    answer = client(told, 200, body).SendNodeHeartbeat(SendNodeHeartbeatRequest())
    assert answer.success is success and told.getvalue() == said


def test_it_tells_of_the_sign_on_and_of_nothing_else():
    told = io.BytesIO()
    body = ActivateNodeResponse(node_id=7).SerializeToString()
    assert client(told, 200, body).ActivateNode(ActivateNodeRequest()).node_id == 7
    client(told, 200).PullMessages(PullMessagesRequest())
    assert told.getvalue() == b"+"
    for call, request in (
        ("SendNodeHeartbeat", SendNodeHeartbeatRequest()),
        ("ActivateNode", ActivateNodeRequest()),
    ):
        with pytest.raises(httpx.HTTPStatusError):
            getattr(client(told, 500), call)(request)
    assert told.getvalue() == b"+"


def test_a_supervisor_that_is_gone_breaks_no_heartbeat():
    told = io.BytesIO()
    told.write = lambda _: (_ for _ in ()).throw(BrokenPipeError())
    body = SendNodeHeartbeatResponse(success=True).SerializeToString()
    assert client(told, 200, body).SendNodeHeartbeat(SendNodeHeartbeatRequest()).success


CHILD = """
import sys, threading, time
from fedapp.tools.node import supernode
def idle():
    print(sys.argv[1:], flush=True)
    threading.Thread(target=time.sleep, args=(1000,)).start()  # as Flower's own server
supernode.flower_supernode = {what}
supernode.main()
"""


def child(what):
    return subprocess.Popen(
        [sys.executable, "-c", CHILD.format(what=what), "1", "/nowhere", "--port=9"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def test_when_its_loop_is_over_the_process_ends_though_threads_go_on():
    with child("idle") as process:
        assert process.wait() == -signal.SIGTERM
        assert process.stdout.read() == b"['--port=9']\n"


def test_its_end_is_an_orderly_one():
    """As Flower's own: the interpreter ends while the thread still waits for the parent."""
    with child("lambda: sys.exit(3)") as process:
        assert process.wait() == 3


def test_it_ends_with_the_program_that_started_it():
    with child("lambda: (idle(), time.sleep(1000))") as process:
        assert process.stdout.readline()
        process.stdin.close()
        assert process.wait() == -signal.SIGTERM
