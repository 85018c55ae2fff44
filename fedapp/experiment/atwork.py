"""Whether somebody is at work on a run: what `runlock` holds, looked at from outside.

Nothing here imports torch: who watches a run leaves the machine to it.
"""

import fcntl
from pathlib import Path

from fedapp.ground.disk import refused

LOCK = "server.lock"
"""File of a run folder that its server holds locked."""


def at_work(run: Path) -> bool:
    """Whether a server holds a run's folder, on this machine."""
    try:
        with (run / LOCK).open("rb") as file:
            # Shared and let go of at once: it keeps no other watcher out, and no server for long.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError as error:
        raise refused(run / LOCK, error) from error
    return False
