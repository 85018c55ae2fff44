"""A resident worker without torch, whose work is what the frame asks for.

Started as `python -P -m tests.flower.standin SOCKET LOCK KEY IDLE_S READY LEASE...`. Where a file
named `start` lies beside the socket, it says how the start goes wrong.
"""

import os
import signal
import sys
import time
from pathlib import Path

from client_app.resident.frames import Frame
from client_app.resident.lease import when_over
from client_app.resident.worker import Address, _exit_now, address_of, serve
from fedapp.protocol.codec import encode
from fedapp.protocol.messages import Missing, Refusal, Reply


class StandIn:
    """Answers with its process, as the round of a `Missing`; `action` says what else it does."""

    def __init__(self, address: Address) -> None:
        self._changed = address.socket.parent / "changed"

    def stale(self) -> str:
        return "data changed" if self._changed.exists() else ""

    def answer(self, frame: Frame) -> tuple[Frame, bool]:
        texts = {name: blob.decode(errors="replace") for name, blob in frame.blobs.items()}
        asked = texts["message"]
        if '"die"' in asked:
            os.kill(os.getpid(), signal.SIGKILL)
        if '"hang"' in asked:
            (self._changed.parent / "hangs").write_text(str(os.getpid()))
            while True:
                time.sleep(60)
        if '"count"' in asked:
            reply = Reply(0, 1, "0" * 64, metrics={"trained": 1})
            return Frame({}, {"message": encode(reply)}), True
        if '"babble"' in asked:
            return Frame({}, {"message": b"{}"}), True
        if '"refuse"' in asked:
            return Frame({}, {"message": encode(Refusal(0, os.getpid(), "no"))}), False
        payloads = {name: blob for name, blob in frame.blobs.items() if len(name) == 64}
        return Frame({}, {"message": encode(Missing(0, os.getpid(), ())), **payloads}), True


def main() -> None:
    address = address_of(sys.argv[1:])
    when_over(address.lease, lambda: _exit_now(address))
    with (address.socket.parent / "starts").open("a") as starts:
        starts.write(f"{os.getpid()}\n")
    start = Path(address.socket.parent, "start")
    how = start.read_text() if start.exists() else ""
    if how == "fails":
        raise SystemExit(3)
    if how == "hangs":
        time.sleep(600)
    serve(address, StandIn(address))


if __name__ == "__main__":
    main()
