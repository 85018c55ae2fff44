"""`fedapp page`: a page that shows how things stand, on this machine alone, and changes nothing."""

import http.server
from collections.abc import Callable
from http import HTTPStatus

from fedapp.ground.errors import FedAppError, one_line

FRESH_S = 5
"""Seconds after which a browser asks again."""
_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Refresh": str(FRESH_S),
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def server(page: Callable[[], str], port: int) -> http.server.ThreadingHTTPServer:
    """Return a server of one page on 127.0.0.1, not yet serving. port: 0 for any that is free.

    page: makes the page anew; a FedAppError is shown in its place. Only a browser that asked for
    this machine by name or number is answered, so that no other page can have it ask for this one.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            here = made.server_port
            if self.headers.get("Host") not in {f"127.0.0.1:{here}", f"localhost:{here}"}:
                return self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
            if self.path != "/":
                return self.send_error(HTTPStatus.NOT_FOUND)
            try:
                text, status = page(), HTTPStatus.OK
            except FedAppError as error:
                text, status = _sorry(error), HTTPStatus.SERVICE_UNAVAILABLE
            body = text.encode()
            self.send_response(status)
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return None

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    made = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    return made


def _sorry(error: FedAppError) -> str:
    said = one_line(error).replace("&", "&amp;").replace("<", "&lt;")
    return f'<!doctype html><html lang="en"><title>not now</title><p>{said}</p></html>'
