"""Whether somebody is at work on a run or a comparison, looked at from outside.

Nothing here imports torch: who watches a run leaves the machine to it.
"""

import fcntl
from pathlib import Path

from fedapp.ground.disk import refused

SERVER, COMPARISON = "server.lock", ".lock"
"""File of a run's folder that its server holds locked; of a comparison's, that who carries it out
does."""
LOOK_S = 1.0
"""Seconds for which they try to take it: `at_work` may look at it just now."""


def at_work(folder: Path) -> bool:
    """Whether a process of this machine carries on the run, or the comparison, of a folder."""
    return any(_held(folder / name) for name in (SERVER, COMPARISON))


def _held(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            # Shared and let go of at once: it keeps no other watcher out, and no server for long.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError as error:
        raise refused(path, error) from error
    return False
