"""Runs Flower's SuperNode as the child of `fedapp node`, and reports the server's acknowledgements.

    python -m fedapp.tools.node.supernode FD FOLDER OPTIONS...

FOLDER: the site's own, with its approvals. OPTIONS: those of flower-supernode.

Flower 1.41 does not say whether a SuperNode is online. So this program writes a byte to the file
descriptor FD for the sign-on and for every heartbeat that the server acknowledges. The server
decides by the same events whether the node is online.
"""

import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from flwr.proto.fleet_pb2 import ActivateNodeRequest, ActivateNodeResponse
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest, SendNodeHeartbeatResponse
from flwr.supernode.cli import flower_supernode
from flwr.supernode.fleet_http_client import FleetHttpClient

from fedapp.core.errors import RunError
from fedapp.tools.flower_compat import FLEET_CLIENT
from fedapp.tools.node.approval_hook import ask_before_running
from fedapp.tools.node.approvals import Approvals


def telling(told: BinaryIO) -> type[FleetHttpClient]:
    """Return a client of the server's Fleet API that reports every acknowledgement."""

    def tell() -> None:
        with suppress(OSError):  # the parent has ended, which `leave_with_parent` handles
            told.write(b"+")

    class Telling(FleetHttpClient):
        def ActivateNode(self, request: ActivateNodeRequest) -> ActivateNodeResponse:
            """Sign on at the server."""
            answer = super().ActivateNode(request)
            tell()
            return answer

        def SendNodeHeartbeat(self, request: SendNodeHeartbeatRequest) -> SendNodeHeartbeatResponse:
            """Send a heartbeat."""
            answer = super().SendNodeHeartbeat(request)
            if answer.success:
                tell()
            return answer

    return Telling


def leave_with_parent() -> None:
    """Wait until the parent process has ended; then end this one with SIGTERM."""
    while os.read(0, 4096):  # sys.stdin has a lock, which would block the interpreter's exit
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Run the SuperNode until its loop is over."""
    told = os.fdopen(int(sys.argv.pop(1)), "wb", buffering=0)
    threading.Thread(target=leave_with_parent, daemon=True).start()
    try:
        ask_before_running(Approvals(Path(sys.argv.pop(1))))
        FLEET_CLIENT.replace(telling(told))
    except RunError as error:
        sys.exit(f"error: {error}")
    flower_supernode()
    # The loop ended after an error, but Flower's other threads would keep the process alive.
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
