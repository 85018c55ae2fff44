"""A cable that can be pulled: a TCP forwarder between a SuperNode and the SuperLink."""

import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER so that closing sends RST."""


class Cable:
    """Forwards 127.0.0.1:`port` to 127.0.0.1:`to` until it is pulled; TLS passes through unread.

    `cut`: connections are reset, new ones refused. `swallow`: as where packets are dropped, open
    connections stay but nothing comes through, and nobody answers who wants to connect. `mend`: as
    at first; connections that lost something are reset.
    """

    def __init__(self, port: int, to: int) -> None:
        self.port, self._to = port, to
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self._deaf: list[socket.socket] = []

    def __enter__(self) -> Self:
        self.mend()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cut()

    def cut(self) -> None:
        """Reset all connections and refuse new ones."""
        self._close()
        self._reset()

    def swallow(self) -> None:
        """Let nothing through, and say nothing."""
        self._close()
        deaf = socket.create_server(("127.0.0.1", self.port), backlog=0)
        self._deaf = [deaf]
        for _ in range(4):  # whoever connects while nobody accepts: a queue that is full drops all
            self._deaf.append(socket.socket())
            self._deaf[-1].setblocking(False)
            self._deaf[-1].connect_ex(("127.0.0.1", self.port))

    def mend(self) -> None:
        """Forward again."""
        if self._deaf:
            self.cut()
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port))
            threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:  # cut
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:  # the SuperLink is down
                self._drop(near)
                continue
            with self._lock:
                self._open |= {near, far}
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                if not self._deaf:
                    sink.sendall(data)
            if source in self._open:
                sink.shutdown(socket.SHUT_WR)
        except OSError:
            self._drop(source)
            self._drop(sink)

    def _close(self) -> None:
        for one in filter(None, (self._listener, *self._deaf)):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # wakes who accepts
            one.close()
        self._listener, self._deaf = None, []

    def _reset(self) -> None:
        with self._lock:
            known, self._open = self._open, set()
        for one in known:
            self._drop(one)

    def _drop(self, one: socket.socket) -> None:
        with self._lock:
            self._open.discard(one)
        with suppress(OSError):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        with suppress(OSError):
            one.shutdown(socket.SHUT_RD)  # wakes who reads from it, and sends nothing
        one.close()
