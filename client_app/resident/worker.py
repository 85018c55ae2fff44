"""The resident worker: a process that answers the messages of one node, one after the other.

`python -P -m client_app.resident.worker SOCKET LOCK KEY IDLE_S READY LEASE...` is started by
`caller.py`. The worker writes to the pipe READY when it listens. LEASE are pidfds: when one of
these processes ends, so does the worker. It also ends if no message comes for IDLE_S seconds, and
if nobody waits for its answer any more: a stopped run must not keep a GPU busy. It ends after a
refusal too: an error on a GPU can make every later call of a process fail, and refusals are rare.

Its log goes to the SuperNode's log.
"""

import logging
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol

from filelock import FileLock, Timeout

from client_app.refusals import show_own_lines
from client_app.resident.frames import Frame, peer, receive, send
from client_app.resident.lease import when_over
from fedapp.core.errors import ProtocolError

log = logging.getLogger("flwr")

HANDSHAKE_S = 10.0
TRANSFER_S = 600.0
"""Most seconds for receiving or sending a frame; the caller has its own, shorter limit."""
PARTING_S = 1.0
"""Seconds to wait for the lock when ending; in most cases its holder is ending too."""


class Answering(Protocol):
    """What a worker does with a frame."""

    def stale(self) -> str:
        """Return why this process must not take another frame; empty if it may."""

    def answer(self, frame: Frame) -> tuple[Frame, bool]:
        """Return the answer, and whether this process may take another frame."""


@dataclass(frozen=True)
class Address:
    """The command line of a worker (see this module): where it listens, for whom and how long."""

    socket: Path
    lock: Path
    key: str
    idle_s: float
    ready: int
    lease: tuple[int, ...]


def address_of(arguments: list[str]) -> Address:
    """Parse the command line. Raises ValueError if it is none of a worker."""
    path, lock, key, idle_s, ready, *lease = arguments
    return Address(Path(path), Path(lock), key, float(idle_s), int(ready), tuple(map(int, lease)))


def serve(address: Address, work: Answering) -> None:
    """Answer requests until no request comes, the files change, or one is refused."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        address.socket.unlink(missing_ok=True)  # who started this worker holds the lock
        listener.bind(str(address.socket))
        listener.listen()
        listener.settimeout(address.idle_s)
        os.write(address.ready, b"1")
        os.close(address.ready)
        log.info("resident worker %d is ready", os.getpid())
        while True:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                if _stopped_listening(address, patience_s=0):
                    log.info("resident worker %d ends: idle %g s", os.getpid(), address.idle_s)
                    return
                continue  # a message has just come
            with connection:
                if not _serve_one(connection, address, work):
                    return


def _serve_one(connection: socket.socket, address: Address, work: Answering) -> bool:
    """Serve one connection; return whether the worker may take another."""
    try:
        _, user = peer(connection)
        if user != os.geteuid():
            raise ProtocolError(f"user {user} asks, not this one")
        end = time.monotonic() + HANDSHAKE_S
        asked = receive(connection, end).head.get("key")
        other = "" if asked == address.key else "the code, the settings or the SuperNode changed"
        stale = other or work.stale()
        send(connection, Frame({"stale": stale}), end)
        if stale:
            return False
        frame = receive(connection, time.monotonic() + TRANSFER_S)
        with _ending_with_peer(connection, address):
            answer, well = work.answer(frame)
        send(connection, answer, time.monotonic() + TRANSFER_S)
        return well
    except (OSError, ProtocolError) as error:
        log.warning("resident worker %d: a request broke off: %s", os.getpid(), error)
        return True


@contextmanager
def _ending_with_peer(connection: socket.socket, address: Address) -> Iterator[None]:
    """End this process if the peer closes the connection before the block ends."""
    done, finish = os.pipe()
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    poll.register(done, 0)  # POLLHUP is always reported
    number = connection.fileno()

    def watch() -> None:
        if any(descriptor == number for descriptor, _ in poll.poll()):
            log.warning("resident worker %d ends: nobody waits for its answer", os.getpid())
            _exit_now(address)

    watcher = threading.Thread(target=watch, name="peer", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        os.close(finish)
        watcher.join()
        os.close(done)


def _stopped_listening(address: Address, patience_s: float) -> bool:
    """Remove the socket; False if another process holds the lock, since it is about to connect."""
    try:
        with FileLock(address.lock, timeout=patience_s):
            address.socket.unlink(missing_ok=True)
            return True
    except Timeout:
        return False


def _exit_now(address: Address) -> None:
    """End this process at once, whatever it is doing: nobody waits for the result any more."""
    try:
        _stopped_listening(address, PARTING_S)
    finally:
        os._exit(0)


def main() -> None:
    """Run the worker. The lease is watched before torch is imported, which takes seconds."""
    address = address_of(sys.argv[1:])
    when_over(address.lease, lambda: _exit_now(address))
    import_module("flwr.common.logger")  # its handler writes the worker's log
    show_own_lines()
    from client_app.answering import SiteWork  # with torch, which takes seconds

    serve(address, SiteWork())


if __name__ == "__main__":
    main()
