"""Child processes: a free port for them, who descends from whom, and how they are ended."""

import ctypes
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

_TERMINATION_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a process to end."""
_PR_SET_CHILD_SUBREAPER = 36


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 on which no process listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class _Signalled(SystemExit):
    """A signal asked this process to end; the exit code is 128 and the signal's number."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


@contextmanager
def _lost_signals_again() -> Iterator[None]:
    """Send a signal to this process once more if the exception that stands for it was lost.

    Python raises that exception wherever the main thread is at this moment. Inside a destructor or
    a weak reference's callback no exception can leave: Python only reports it to
    sys.unraisablehook, and the program would go on as if nobody had pressed Ctrl-C. The signal is
    sent from another thread a moment later, when the destructor has most likely ended; if it has
    not, the exception is lost again and so is sent again.
    """
    before = sys.unraisablehook

    def again(lost: "sys.UnraisableHookArgs") -> None:
        if isinstance(lost.exc_value, _Signalled):
            number = lost.exc_value.number
        elif isinstance(lost.exc_value, KeyboardInterrupt):
            number = signal.SIGINT
        else:
            before(lost)
            return
        sender = threading.Timer(0.05, os.kill, (os.getpid(), number))
        sender.daemon = True
        sender.start()

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextmanager
def signals_as_exit(interrupt: bool = True) -> Iterator[None]:
    """Turn the signals that end a program into SystemExit, so that everything is cleaned up.

    interrupt: True: Ctrl-C does so too, and a line announces the end. False: Ctrl-C still raises
    KeyboardInterrupt, and the caller that catches it prints a message of its own.
    """

    def leave(number: int, _frame: FrameType | None) -> None:
        if interrupt:
            print("\nending, with all that was started ...", file=sys.stderr, flush=True)
        raise _Signalled(number)

    numbers = _TERMINATION_SIGNALS if interrupt else set(_TERMINATION_SIGNALS) - {signal.SIGINT}
    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        with _lost_signals_again():
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """Turn SIGTERM into KeyboardInterrupt, so that a program ends as it does on Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _lost_signals_again():
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


def all_pids() -> set[int]:
    """Return the ids of all processes of this machine."""
    return {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}


def read_proc(pid: int, name: str) -> bytes:
    """Return the content of /proc/PID/NAME; empty if the process is gone or another user's."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def with_environment_variable(variable: str, value: str) -> set[int]:
    """Return the ids of the processes that were started with this environment variable.

    Linux shows the environment of a program that starts just now as empty for a moment: who has
    to find that one too asks again.
    """
    mark = f"{variable}={value}".encode()
    return {pid for pid in all_pids() if mark in read_proc(pid, "environ").split(b"\0")}


def _stat(pid: int) -> tuple[str, int]:
    """Return the state (a letter of proc(5)) and the parent's id of a process; ("X", 0) if gone.

    Both stand after the program's name, which is in parentheses and may itself contain any text.
    """
    fields = read_proc(pid, "stat").rpartition(b")")[2].split()
    return (fields[0].decode(), int(fields[1])) if len(fields) > 1 else ("X", 0)


def parent(pid: int) -> int:
    """Return the id of a process's parent; 0 if the process is gone."""
    return _stat(pid)[1]


def descendants(roots: set[int]) -> set[int]:
    """Return all descendants of these processes, without the processes themselves."""
    parents = {pid: parent(pid) for pid in all_pids()}
    found: set[int] = set()
    fresh = set(roots)
    while fresh:
        fresh = {pid for pid, above in parents.items() if above in fresh} - found
        found |= fresh
    return found


def alive(numbers: set[int]) -> set[int]:
    """Return those of these processes that have not ended."""
    return {pid for pid in numbers if _stat(pid)[0] not in "ZX"}


def terminate(remaining: Callable[[], set[int]]) -> None:
    """Send SIGTERM twice and then SIGKILL, 5 s apart, until `remaining` returns no process."""
    for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        for pid in remaining():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if not remaining():
                return
            time.sleep(0.1)


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent ends, so that all can be found and ended."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def terminate_descendants() -> None:
    """End all our descendants, ignoring signals meanwhile; the caller is about to end as well."""
    for number in _TERMINATION_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    terminate(running_descendants)


def running_descendants() -> set[int]:
    """Return our descendants that still run, after waiting for (reaping) those that have ended.

    Adopted orphans are reaped too, since in a container nobody else does it. A process whose
    threads are still ending counts as running.
    """
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return set()
    return descendants({os.getpid()})
