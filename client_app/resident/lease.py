"""How long a resident worker may live: as long as the SuperNode that it works for.

Flower starts a process for every message: `flwr-clientapp ... --parent-pid P`. P is a SuperExec,
which lives as long as its SuperNode and in most cases was started by it, with `--parent-pid` again.
Only such a process needs a resident worker. Other processes that run the ClientApp, such as a Ray
actor of Flower's simulation, answer many messages themselves and have data and model in memory.
The command line of the process shows which of the two it is, so no setting has to say it.
"""

import os
import select
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from fedapp.core.processes import parent, read_proc

ONE_MESSAGE = "flwr-clientapp"
"""The program that Flower starts for one message."""


def launcher() -> int | None:
    """Return the process that started this one for a single message; None if none did."""
    if Path(sys.argv[0]).name != ONE_MESSAGE:
        return None
    pid = _parent_pid(sys.argv)
    return pid if pid == os.getppid() else None


def lease_of(launcher: int) -> list[int]:
    """Return pidfds of the SuperExec and, if a SuperNode started that, of the SuperNode.

    A pidfd never refers to another process, and a worker can inherit it. Raises OSError if the
    kernel has no pidfds, and if the launcher has just ended.
    """
    found = [os.pidfd_open(launcher)]
    if os.getppid() != launcher:
        os.close(found[0])
        raise ProcessLookupError(f"process {launcher} has ended")
    supernode = _parent_pid(read_proc(launcher, "cmdline").decode(errors="replace").split("\0"))
    if supernode is not None and supernode == parent(launcher):
        try:
            found.append(os.pidfd_open(supernode))
        except OSError:  # it has just ended, and so will the SuperExec
            pass
    return found


def when_over(lease: Iterable[int], then: Callable[[], object]) -> None:
    """Call `then` in a thread as soon as one of the processes of the lease has ended."""
    poll = select.poll()
    for descriptor in lease:
        poll.register(descriptor, select.POLLIN)

    def watch() -> None:
        poll.poll()
        then()

    threading.Thread(target=watch, name="lease", daemon=True).start()


def _parent_pid(command: Sequence[str]) -> int | None:
    _, _, after = "\0".join(command).partition("\0--parent-pid\0")
    value = after.partition("\0")[0]
    return int(value) if value.isdecimal() else None
