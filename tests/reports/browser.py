"""Chromium by its DevTools protocol: a page at any width, and what its keys do."""

import base64
import json
import os
import select
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CHROMIUM = shutil.which("chromium")
PATIENCE_S = 120


class Browser:
    """A page of a browser that is driven over its pipe. said: what it complained of."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive, self._rest, self._last = send, receive, b"", 0
        self._session: str | None = None
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self._session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.said: list[str] = []
        self("Page.enable")
        self("Log.enable")

    def __call__(self, method: str, **params):
        """Return what a command of the protocol answers."""
        self._last += 1
        ask = {"id": self._last, "method": method, "params": params}
        if self._session:
            ask["sessionId"] = self._session
        os.write(self._send, json.dumps(ask).encode() + b"\0")
        while (said := self._next()).get("id") != self._last:
            pass
        return said["result"]

    def _next(self):
        while b"\0" not in self._rest:
            there, _, _ = select.select([self._receive], [], [], PATIENCE_S)
            came = os.read(self._receive, 1 << 20) if there else b""
            assert came, "the browser ended, or says nothing"
            self._rest += came
        message, _, self._rest = self._rest.partition(b"\0")
        found = json.loads(message)
        if found.get("method") == "Log.entryAdded":
            self.said.append(found["params"]["entry"]["text"])
        return found

    def open(self, page: str, width: int, dark: bool = False) -> None:
        """Show a page [address] at a width, and wait until it is there."""
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        self("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self("Emulation.setEmulatedMedia", features=[scheme])
        self("Page.navigate", url=page)
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def value(self, script: str):
        """Return what a script's expression is in the page, or what its promise comes to."""
        asked = self("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in asked, asked
        return asked["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """Press and release a key; code: Windows' number of it."""
        of = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self("Input.dispatchKeyEvent", type="rawKeyDown", **of)
        if key == "Enter":
            self("Input.dispatchKeyEvent", type="char", text="\r", **of)
        self("Input.dispatchKeyEvent", type="keyUp", **of)

    def shot(self, path: Path) -> None:
        """Write a picture of what is in sight."""
        found = self("Page.captureScreenshot")
        path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start a browser that has nothing but a folder of its own; it ends with the block."""
    (theirs, send), (receive, said) = os.pipe(), os.pipe()
    command = [
        *("bash", "-c", f'exec "$@" 3<&{theirs} 4>&{said}', "chromium", str(CHROMIUM)),
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
        *("--hide-scrollbars", "--remote-debugging-pipe", f"--user-data-dir={profile}"),
    ]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, pass_fds=(theirs, said), stdout=quiet, stderr=quiet) as process:
        os.close(theirs)
        os.close(said)
        try:
            yield Browser(send, receive)
        finally:
            process.terminate()
            os.close(send)
            os.close(receive)
