"""Flower's SuperNode as the child of `fedapp node`: it tells when the server acknowledges it.

    python -m fedapp.tools.node.supernode FD FOLDER OPTIONS...

FOLDER: the site's own, with its approvals. OPTIONS: those of flower-supernode.

Flower 1.41 says nowhere whether a SuperNode is online. So a byte goes to the file descriptor FD for
every heartbeat (and the first sign-on) that the server acknowledges: the server goes by the same.
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
    """Return a client of the server's Fleet API that tells of every acknowledgement."""

    def tell() -> None:
        with suppress(OSError):  # nobody listens any more: `leave_with_parent` sees to that
            told.write(b"+")

    class Telling(FleetHttpClient):
        def ActivateNode(self, request: ActivateNodeRequest) -> ActivateNodeResponse:
            """Sign on."""
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
    """Wait until the program that started this one has ended; then end this one, as if asked."""
    while os.read(0, 4096):  # not by sys.stdin, whose lock would break the interpreter's end
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Run the SuperNode until it ends, or until it does nothing any more."""
    told = os.fdopen(int(sys.argv.pop(1)), "wb", buffering=0)
    threading.Thread(target=leave_with_parent, daemon=True).start()
    try:
        ask_before_running(Approvals(Path(sys.argv.pop(1))))
        FLEET_CLIENT.replace(telling(told))
    except RunError as error:
        sys.exit(f"error: {error}")
    flower_supernode()
    # Its loop is over, after an error. Flower's other threads would hold the process for ever.
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
