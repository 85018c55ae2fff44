"""The resident worker from the message's side, with a stand-in for the site's work."""

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

from client_app.resident import caller as resident
from client_app.resident import frames
from client_app.resident.caller import NoWorker, Worker, ask, worker_for
from client_app.resident.frames import Frame
from fedapp.core.errors import ConfigError, RunError
from fedapp.protocol.codec import decode_answer, encode
from fedapp.protocol.messages import Incoming, Missing, ModelRef, Origin, Refusal, Reply, Task

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-P", "-m", "tests.flower.standin")
ORIGIN = Origin("run", "0" * 16, "0" * 64)
LONG = 120.0


def task(action="work"):
    return Task(0, 1, action, ModelRef(0, 0, "0" * 64))


@pytest.fixture
def folder():
    """A folder for sockets; not pytest's own, whose path would be too long."""
    with tempfile.TemporaryDirectory(prefix="um-") as path:
        yield Path(path)


@pytest.fixture
def supernode(monkeypatch):
    """A process that workers are leased to, in place of a SuperNode; all end with it."""
    process = subprocess.Popen(["sleep", "600"])
    monkeypatch.setattr(resident, "lease_of", lambda pid: [os.pidfd_open(pid)])
    yield process
    process.kill()
    process.wait()
    for started in resident._STARTED:
        started.wait(30)
    resident._STARTED.clear()


@pytest.fixture
def worker(folder, supernode):
    return Worker(folder, "1a", "key", {}, 600.0, supernode.pid, COMMAND)


def pid_of(incoming):
    """The stand-in answers with its process."""
    assert isinstance(incoming.answer, Missing)
    return incoming.answer.round


def asked(worker, action="work", payloads=None, limit_s=LONG):
    message, contents = ask(worker, ORIGIN, task(action), payloads or {}, limit_s)
    return Incoming(decode_answer(message), contents)


def starts(worker):
    return (worker.folder / "starts").read_text().split()


def ends(pid, within_s=30):
    """Wait for the end of a process; whether it came."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], within_s)[0])
    finally:
        os.close(descriptor)


def lives(pid):
    return not ends(pid, 0)


def test_the_first_request_starts_it_and_later_ones_find_it(worker):
    models = {"a" * 64: os.urandom(2**21), "b" * 64: b""}
    first = asked(worker, payloads=models)
    assert first.payloads == models
    assert {pid_of(asked(worker)) for _ in range(3)} == {pid_of(first)}
    assert len(starts(worker)) == 1 and pid_of(first) != os.getpid()


def test_an_answer_is_passed_on_as_it_came(worker):
    """Parsed and written again, its counts would be 1.0 instead of 1, and the traffic another."""
    message, _ = ask(worker, ORIGIN, task("count"), {}, LONG)
    assert message == encode(Reply(0, 1, "0" * 64, metrics={"trained": 1}))
    assert message != encode(decode_answer(message))


def test_another_key_means_another_worker_and_the_end_of_the_old(worker):
    old = pid_of(asked(worker))
    new = pid_of(asked(replace(worker, key="other code, preset or SuperNode")))
    assert new != old and ends(old) and lives(new)


def test_changed_data_mean_another_worker(worker):
    old = pid_of(asked(worker))
    (worker.folder / "changed").touch()
    with pytest.raises(NoWorker, match="does not stay"):  # the stand-in's data stay changed
        asked(worker)
    assert ends(old) and len(starts(worker)) == 2
    (worker.folder / "changed").unlink()
    assert pid_of(asked(worker)) != old


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_one_that_was_killed_or_does_not_move_is_replaced(worker, monkeypatch, number):
    """What a killed one leaves is its socket."""
    monkeypatch.setattr(resident, "READY_S", 2.0)
    old = pid_of(asked(worker))
    os.kill(old, number)
    assert number == signal.SIGSTOP or (ends(old) and worker.socket.exists())
    assert pid_of(asked(worker)) != old
    assert ends(old)


@pytest.mark.parametrize(("action", "said"), [
    ("die", "process {}\\) failed: "), ("babble", "message head must hold exactly"),
])  # fmt: skip
def test_one_that_dies_or_answers_nonsense_is_ended_and_the_next_request_starts_another(
    worker, action, said
):
    old = pid_of(asked(worker))
    with pytest.raises(NoWorker, match=said.format(old)):
        asked(worker, action)
    assert ends(old)
    assert pid_of(asked(worker)) != old


def test_a_file_where_the_socket_belongs_does_not_matter(worker):
    worker.socket.write_text("?")
    assert pid_of(asked(worker))


def test_one_that_hangs_is_ended_and_no_other(worker):
    other = replace(worker, name="2b")
    bystander, old = pid_of(asked(other)), pid_of(asked(worker))
    with pytest.raises(RunError, match=rf"process {old}\) in 1 s; it was ended and"):
        asked(worker, "hang", limit_s=1.0)
    assert ends(old) and lives(bystander)
    assert pid_of(asked(worker)) not in {old, bystander}
    assert pid_of(asked(other)) == bystander


def test_after_a_refusal_it_ends_by_itself(worker):
    refusal = asked(worker, "refuse").answer
    assert isinstance(refusal, Refusal) and ends(refusal.round)
    assert pid_of(asked(worker)) != refusal.round


def test_one_that_cannot_start_is_told(worker):
    (worker.folder / "start").write_text("fails")
    with pytest.raises(NoWorker, match="ended at its start, code 3"):
        asked(worker)
    (worker.folder / "start").unlink()
    assert pid_of(asked(worker))


def test_one_that_hangs_at_its_start_is_ended(worker, monkeypatch):
    started = []

    class Kept(subprocess.Popen):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Kept)
    monkeypatch.setattr(resident, "START_S", 0.3)
    (worker.folder / "start").write_text("hangs")
    with pytest.raises(NoWorker, match="did not start within 0 s"):
        asked(worker)
    assert [process.returncode for process in started] == [-signal.SIGKILL]


def test_a_program_that_is_not_there_is_told(worker):
    with pytest.raises(NoWorker, match="cannot be reached"):
        asked(replace(worker, command=("/nowhere/python",)))


def test_a_supernode_that_has_just_ended_gets_none(worker, supernode):
    supernode.kill()
    supernode.wait()
    with pytest.raises(NoWorker, match="cannot be reached"):
        asked(worker)
    assert not (worker.folder / "starts").exists()


ASK = """
import os, sys
from pathlib import Path
from client_app.resident import caller as resident
from fedapp.protocol.codec import decode_answer
from fedapp.protocol.messages import ModelRef, Origin, Task
resident.lease_of = lambda pid: [os.pidfd_open(pid)]
resident.BUSY_S = 120.0
folder, supernode, *command = sys.argv[1:]
worker = resident.Worker(Path(folder), "1a", "key", {}, 600.0, int(supernode), command)
task = Task(0, 1, "work", ModelRef(0, 0, "0" * 64))
message, _ = resident.ask(worker, Origin("run", "0" * 16, "0" * 64), task, {}, 120.0)
(worker.folder / f"answer-{os.getpid()}").write_text(str(decode_answer(message).round))
"""


def test_messages_at_once_start_one_worker(worker):
    arguments = [sys.executable, "-c", ASK, str(worker.folder), str(worker.launcher), *COMMAND]
    both = [subprocess.Popen(arguments, cwd=ROOT) for _ in range(2)]
    assert [process.wait(240) for process in both] == [0, 0]
    said = [path.read_text() for path in worker.folder.glob("answer-*")]
    assert len(said) == 2 and {*said} == {*starts(worker)}
    assert len(starts(worker)) == 1


def test_a_request_beside_another_is_refused_not_queued_for_ever(worker, monkeypatch):
    monkeypatch.setattr(resident, "BUSY_S", 0.0)
    with resident._exclusive(worker), pytest.raises(RunError, match="still at work on an earlier"):
        asked(worker)


def test_after_the_idle_time_it_has_gone_and_its_socket_too(worker):
    assert ends(pid_of(asked(replace(worker, idle_s=0.1))))
    assert not worker.socket.exists()
    assert pid_of(asked(worker))


def connected(worker):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(str(worker.socket))
    return connection


def hanging(worker):
    """Make the worker hang in a task; return the connection that waits for it, and its process."""
    pid, end = pid_of(asked(worker)), time.monotonic() + LONG
    connection = connected(worker)
    frames.send(connection, Frame({"key": worker.key}), end)
    assert frames.receive(connection, end).head == {"stale": ""}
    frames.send(connection, Frame({}, {"message": b'"hang"'}), end)
    while not (worker.folder / "hangs").exists():
        time.sleep(0.01)
    return connection, pid


def test_with_its_supernode_it_ends_though_it_is_at_work(worker, supernode):
    connection, pid = hanging(worker)
    with connection:
        supernode.kill()  # not waited for: a zombie has ended too
        assert ends(pid)
    assert not worker.socket.exists()


def test_it_ends_when_nobody_waits_for_its_answer(worker):
    connection, pid = hanging(worker)
    connection.close()
    assert ends(pid)


@pytest.mark.parametrize("noise", [b"", b"GET / HTTP/1.0\r\n\r\n", b"UMW1" + b"\xff" * 6])
def test_noise_on_its_socket_does_not_end_it(worker, noise):
    pid = pid_of(asked(worker))
    with connected(worker) as stranger:
        stranger.sendall(noise)
    assert pid_of(asked(worker)) == pid


def test_another_users_socket_is_not_spoken_to(worker, monkeypatch):
    pid = pid_of(asked(worker))
    monkeypatch.setattr(resident, "peer", lambda connection: (pid, os.geteuid() + 1))
    with pytest.raises(NoWorker, match="not this one"):
        asked(worker)
    assert lives(pid)


# --- which worker, if any -------------------------------------------------------------------------


@pytest.fixture
def one_message(monkeypatch, folder):
    """Be the process that Flower starts for one message."""
    monkeypatch.setattr(resident, "launcher", lambda: 4711)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))


def context(run=None, node_id=26, **node):
    config = {"partition-id": 0, **node}
    return Context(1, node_id, config, RecordDict(), {"preset": "digits_demo", **(run or {})})


def test_a_process_that_answers_many_messages_uses_none():
    assert worker_for(context()) is None


def test_it_is_found_by_its_node_in_a_folder_of_this_user_only(one_message, folder):
    found = worker_for(context())
    assert found.socket == folder / f"fedapp-{os.geteuid()}" / "1a.sock"
    assert found.folder.stat().st_mode & 0o777 == 0o700
    assert found.idle_s == resident.IDLE_S
    assert worker_for(context()) == found


def test_its_key_changes_with_code_settings_and_supernode(one_message, monkeypatch):
    keys = [
        worker_for(context()).key,
        worker_for(context({"preset": "fashion_mnist_small"})).key,
        worker_for(context({"seed": 1})).key,
        worker_for(context(**{"data-path": "/data"})).key,
    ]
    monkeypatch.setattr(resident, "code_hash", lambda: ("/app", "0" * 16))
    keys.append(worker_for(context()).key)
    monkeypatch.setattr(resident, "launcher", lambda: 4712)
    keys.append(worker_for(context()).key)
    assert len({*keys}) == len(keys)


@pytest.mark.parametrize("idle_s", ["600", -1, True, 1e7, float("nan"), float("inf")])
def test_an_idle_time_that_is_none_is_refused(one_message, idle_s):
    with pytest.raises(ConfigError, match="worker-idle-s = "):
        worker_for(context(**{"worker-idle-s": idle_s}))


def test_an_idle_time_of_0_means_none(one_message):
    assert worker_for(context(**{"worker-idle-s": 0})) is None
    assert worker_for(context(**{"worker-idle-s": 0.5})).idle_s == 0.5


FOLDERS = {
    "with mode 700; remove it": lambda path: path.mkdir(mode=0o755),
    "must be a folder of this user": lambda path: path.symlink_to(path.parent),
    "cannot be made": lambda path: (path.parent.rmdir(), path.parent.touch()),
}


@pytest.mark.parametrize("said", FOLDERS)
def test_a_folder_that_is_not_this_users_alone_is_not_used(one_message, monkeypatch, folder, said):
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "tmp"))
    (folder / "tmp").mkdir(mode=0o700)
    FOLDERS[said](folder / "tmp" / f"fedapp-{os.geteuid()}")
    with pytest.raises(NoWorker, match=said):
        worker_for(context())


def test_a_path_too_long_for_a_socket_is_told(one_message, folder, monkeypatch):
    (folder / ("x" * 80)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder / ("x" * 80)))
    with pytest.raises(NoWorker, match="set TMPDIR to a shorter one"):
        worker_for(context())
