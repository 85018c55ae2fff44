"""Whether a site's node is online: a file that `fedapp node` writes and `--status` reads."""

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fedapp.core.disk import write_atomic
from fedapp.core.errors import StoreError
from fedapp.core.untrusted_files import read_json
from fedapp.experiment.run_folder import runs_root

FRESH_S = 45.0
"""Age in seconds up to which a status counts. A supervisor that hangs does not renew it. Ending a
SuperNode takes up to 15 s, and waiting for the next one up to 20 s."""


def status_path(port: int) -> Path:
    """Return the status file of the node on this port of this machine."""
    return Path(os.environ.get("FEDAPP_SITES") or runs_root()) / f".node-{port}.json"


@dataclass
class Status:
    """Reports the node's state: in its log when it changes, in a file whose time is renewed.

    A full disk does not end the node. Its file grows old then, so that it counts as unhealthy.
    """

    path: Path
    _state: str = ""
    _detail: str = ""

    def now(self, state: str, detail: str) -> None:
        """Report a state (starting, online or offline) and its reason."""
        if (state, detail) == (self._state, self._detail):
            return self.still()
        self._state, self._detail = state, detail
        since = datetime.now(UTC).isoformat(timespec="seconds")
        print(f"fedapp node: {state}: {detail}", flush=True)
        line = json.dumps({"state": state, "detail": detail, "since": since})
        try:
            write_atomic(self.path, line.encode(), durable=False)
        except StoreError as error:
            print(f"fedapp node: {error}", flush=True)

    def still(self) -> None:
        """Renew the file's time: nothing has changed."""
        with suppress(OSError):
            os.utime(self.path)

    def gone(self) -> None:
        """Remove the file: the node has ended."""
        with suppress(OSError):
            self.path.unlink()


def health(path: Path) -> tuple[bool, str]:
    """Return whether the node with this status file is online, and its state in words."""
    try:
        said = read_json(path)
        age = time.time() - path.stat().st_mtime
        state, since, detail = (str(said[key]) for key in ("state", "since", "detail"))
    except FileNotFoundError:
        return False, (
            f"not running, or started with another --port or FEDAPP_SITES: there is no {path}; "
            "give both as the node has them, or start `fedapp node`"
        )
    except (OSError, ValueError, LookupError, TypeError) as error:
        return False, f"{path}: cannot be read ({error}): start `fedapp node` again"
    if age > FRESH_S:
        return False, f"does not respond: its last check was {age:.0f} s ago (it said: {state})"
    return state == "online", f"{state} since {since}: {detail}"
