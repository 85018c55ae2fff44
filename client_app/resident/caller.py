"""The caller's side of the resident worker: find it, start it, ask it and end it.

On a SuperNode every message gets a new process, which would spend seconds on importing torch and
would load data and model anew. So the process of the first message starts a worker that stays, and
the processes of later messages ask it over a Unix socket. A worker belongs to one node, one version
of the code and one set of settings. `worker.py` is its own side, and `lease.py` says how long it
lives. Nothing here imports torch.
"""

import hashlib
import json
import logging
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout
from flwr.app import Context

from client_app.resident.frames import Frame, peer, receive, send
from client_app.resident.lease import launcher, lease_of
from fedapp.core.errors import ConfigError, FedAppError, ProtocolError, RunError
from fedapp.experiment.code_hash import code_hash
from fedapp.experiment.preset_files import Scalar
from fedapp.protocol.codec import decode_answer, encode
from fedapp.protocol.messages import Origin, Request

log = logging.getLogger("flwr")

IDLE_KEY = "worker-idle-s"
"""Key of the node config: seconds without a message after which a worker ends; 0: no worker."""
IDLE_S = 600.0
MAX_IDLE_S = 1e6
"""Eleven days: no kernel timer overflows, and no worker should wait longer."""
BUSY_S = 5.0
"""Seconds to wait while the process of another message uses the worker."""
START_S = 120.0
"""Seconds that a worker may take to import torch, on a machine that is busy."""
READY_S = 10.0
"""Seconds in which an idle worker must answer whether it may take a message."""

_LONGEST_PATH = 107
"""Most bytes in the path of a Unix socket on Linux."""
_COMMAND = (sys.executable, "-P", "-m", "client_app.resident.worker")
"""-P: never import from the folder that the SuperNode happened to be started in."""


class NoWorker(FedAppError):
    """There is no worker to ask, and why."""


@dataclass(frozen=True)
class Worker:
    """Where a node's worker listens, and how one is started.

    key: hash of code, settings and SuperNode. A worker that was started with another key is
    replaced. node: the node's and the run's config, which go with every request. launcher: the
    process that started this one.
    """

    folder: Path
    name: str
    key: str
    node: Mapping[str, Scalar | Mapping[str, Scalar]]
    idle_s: float
    launcher: int
    command: Sequence[str] = field(default=_COMMAND)

    @property
    def socket(self) -> Path:
        """The socket on which the worker listens."""
        return self.folder / f"{self.name}.sock"

    @property
    def lock(self) -> Path:
        """Locked by the process that asks or starts the worker, and to remove the socket."""
        return self.folder / f"{self.name}.lock"


def worker_for(context: Context) -> Worker | None:
    """Return the worker of a node; None if this process needs none.

    Raises ConfigError if `worker-idle-s` is no number of seconds, NoWorker if no worker can run
    here.
    """
    if (parent := launcher()) is None:
        return None
    idle_s = context.node_config.get(IDLE_KEY, IDLE_S)
    known = isinstance(idle_s, int | float) and not isinstance(idle_s, bool)
    if not known or not 0 <= float(idle_s) <= MAX_IDLE_S:
        raise ConfigError(
            f"node config: {IDLE_KEY} = {idle_s!r}: must be seconds, at most {MAX_IDLE_S:.0f}, or "
            "0 for no resident worker"
        )
    if idle_s == 0:
        return None
    settings = {"node_config": context.node_config, "run_config": context.run_config}
    identity = {**settings, "code": code_hash(), "launcher": parent, "python": sys.executable}
    return Worker(
        folder=_folder(),
        name=f"{context.node_id:x}",
        key=hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest(),
        node=settings,
        idle_s=float(idle_s),
        launcher=parent,
    )


def ask(
    worker: Worker,
    origin: Origin,
    request: Request,
    payloads: Mapping[str, bytes],
    limit_s: float,
) -> tuple[bytes, dict[str, bytes]]:
    """Return a worker's answer, encoded, and the contents that go with it.

    If no worker is running, one is started. The answer is checked and then passed on unchanged:
    its bytes are part of the traffic that a run records.

    Raises NoWorker if the worker died at work or cannot be started. Raises RunError if the answer
    takes longer than `limit_s`, after ending the worker, and if the process of another message
    keeps using it.
    """
    end = time.monotonic() + limit_s
    heads = {"origin": encode(origin), "message": encode(request)}
    with _exclusive(worker), _connected(worker, end) as connected:
        try:
            send(connected.connection, Frame(worker.node, {**heads, **payloads}), end)
            frame = receive(connected.connection, end)
            contents = dict(frame.blobs)
            decode_answer(message := contents.pop("message", b""))
            return message, contents
        except TimeoutError as error:
            connected.kill()
            raise RunError(
                f"no answer from the resident worker (process {connected.pid}) in {limit_s:.0f} s; "
                "it was ended and the next request starts another; raise rounds.deadline_s if it "
                "was at work"
            ) from error
        except (OSError, ProtocolError) as error:
            connected.kill()
            raise NoWorker(
                f"the resident worker (process {connected.pid}) failed: {error}"
            ) from error


@contextmanager
def _exclusive(worker: Worker) -> Iterator[None]:
    """Hold a lock, so that one process at a time finds, starts and asks a node's worker.

    The kernel releases the lock when the process ends, however it ends.
    """
    lock = FileLock(worker.lock)
    try:
        lock.acquire(timeout=BUSY_S)
    except Timeout as error:
        raise RunError(
            "the site is still at work on an earlier request; raise rounds.deadline_s"
        ) from error
    except OSError as error:
        raise NoWorker(f"{worker.lock}: cannot be locked ({error})") from error
    try:
        yield
    finally:
        lock.release()


class _Connection:
    """A connection to a worker, and a pidfd, which never refers to another process."""

    def __init__(self, worker: Worker) -> None:
        """Connect. Raises OSError if nobody listens, NoWorker if another user listens."""
        with ExitStack() as undo:
            self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            undo.callback(self.connection.close)
            self.connection.settimeout(READY_S)
            self.connection.connect(str(worker.socket))
            self.pid, user = peer(self.connection)
            if user != os.geteuid():
                raise NoWorker(f"{worker.socket}: user {user} listens there, not this one")
            self._process = os.pidfd_open(self.pid)
            undo.callback(os.close, self._process)
            poll = select.poll()
            poll.register(self.connection, 0)  # POLLHUP is always reported
            if poll.poll(0):  # it has just ended: its number may already be another process's
                raise ConnectionRefusedError("the worker has just ended")
            undo.pop_all()

    def kill(self) -> None:
        """Kill the worker and wait for its end. It leaves no file half written."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, signal.SIGKILL)
        select.select([self._process], [], [], READY_S)

    def close(self) -> None:
        """Hang up."""
        self.connection.close()
        os.close(self._process)


@contextmanager
def _connected(worker: Worker, end: float) -> Iterator[_Connection]:
    """Yield a connection to the running worker, or to a new one."""
    try:
        if (found := _reach(worker, end)) is None:
            _start(worker, end)
            found = _reach(worker, end)
    except (OSError, ProtocolError) as error:
        raise NoWorker(f"the resident worker cannot be reached: {error}") from error
    if found is None:
        raise NoWorker("the resident worker does not stay")
    with closing(found):
        yield found


def _reach(worker: Worker, end: float) -> _Connection | None:
    """Return a connection to the running worker; None if there is none, or none with this key.

    A worker that is stale, or does not say in time that it is not, is killed.
    """
    try:
        connected = _Connection(worker)
    except (FileNotFoundError, ConnectionRefusedError, ProcessLookupError):
        return None  # there is no socket yet, or a killed worker has left one behind
    with ExitStack() as undo:
        undo.callback(connected.close)
        try:
            soon = min(end, time.monotonic() + READY_S)
            send(connected.connection, Frame({"key": worker.key}), soon)
            reason = receive(connected.connection, soon).head.get("stale")
        except (OSError, ProtocolError) as error:
            reason = str(error)
        if reason == "":
            undo.pop_all()
            return connected
        log.info("the resident worker (process %d) is replaced: %s", connected.pid, reason)
        connected.kill()
    return None


def _start(worker: Worker, end: float) -> None:
    """Start a worker and wait until it listens. Raises NoWorker, OSError."""
    lease = lease_of(worker.launcher)
    ready, ready_in_worker = os.pipe()
    try:
        root = str(Path(__file__).parents[2])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        handed = [ready_in_worker, *lease]
        arguments = [str(worker.socket), str(worker.lock), worker.key, str(worker.idle_s)]
        process = subprocess.Popen(
            [*worker.command, *arguments, *map(str, handed)],
            stdin=subprocess.DEVNULL,  # it inherits stdout and stderr, so its log is the node's
            pass_fds=handed,
            start_new_session=True,  # Ctrl-C is for the SuperNode; the worker ends when that does
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
    finally:
        for descriptor in (ready_in_worker, *lease):
            os.close(descriptor)
    try:
        limit_s = max(min(end - time.monotonic(), START_S), 0)
        if not select.select([ready], [], [], limit_s)[0]:
            raise NoWorker(f"the resident worker did not start within {limit_s:.0f} s")
        if not os.read(ready, 1):
            raise NoWorker(f"the resident worker ended at its start, code {process.wait()}")
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        os.close(ready)
    _STARTED.append(process)


_STARTED: list[subprocess.Popen[bytes]] = []
"""Kept because Python warns if a process object is deleted while its process still runs."""


def _folder() -> Path:
    """Return the folder of sockets, which only this user can enter. Raises NoWorker."""
    folder = Path(tempfile.gettempdir()) / f"fedapp-{os.geteuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        facts = folder.lstat()
    except OSError as error:
        raise NoWorker(f"{folder}: cannot be made ({error})") from error
    private = stat.S_ISDIR(facts.st_mode) and stat.S_IMODE(facts.st_mode) == 0o700
    if not private or facts.st_uid != os.geteuid():
        raise NoWorker(f"{folder}: must be a folder of this user with mode 700; remove it")
    longest = folder / f"{2**64:x}.sock"
    if len(os.fsencode(longest)) > _LONGEST_PATH:
        raise NoWorker(f"{folder}: too long a path for a socket; set TMPDIR to a shorter one")
    return folder
