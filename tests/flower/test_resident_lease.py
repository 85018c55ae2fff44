"""Which process has use for a resident worker, and how long that may live."""

import os
import select
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from client_app.resident import lease

ROOT = Path(__file__).parents[2]

CLIENTAPP = """
import os, sys
from client_app.resident import lease
sys.argv[0] = "/bin/flwr-clientapp"
parent = lease.launcher()
print(parent == os.getppid(), len(lease.lease_of(parent)))
"""
SUPEREXEC = """
import os, subprocess, sys
code, *_ = sys.argv[1:]
subprocess.run([sys.executable, "-c", code, "--parent-pid", str(os.getpid())], check=True)
"""
SUPERNODE = """
import os, subprocess, sys
superexec, code, *flag = sys.argv[1:]
own = ["--parent-pid", str(os.getpid())] if flag else []
subprocess.run([sys.executable, "-c", superexec, code, *own], check=True)
"""


@pytest.mark.parametrize(("flag", "count"), [(["subprocess"], 2), ([], 1)])
def test_a_lease_is_the_superexec_and_the_supernode_that_started_it(flag, count):
    done = subprocess.run(
        [sys.executable, "-c", SUPERNODE, SUPEREXEC, CLIENTAPP, *flag],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["True", str(count)]


@pytest.mark.parametrize(
    ("program", "parent", "found"),
    [
        ("/venv/bin/flwr-clientapp", os.getppid(), True),
        ("/venv/bin/flwr-clientapp", os.getpid(), False),  # it has ended: another one adopted us
        ("/venv/bin/flwr-clientapp", None, False),
        ("/venv/bin/flwr-clientapp", "x", False),
        ("default_worker.py", os.getppid(), False),
        ("", os.getppid(), False),
    ],
    ids=["for one", "adopted", "no flag", "no number", "a Ray worker", "interactive"],
)
def test_only_a_process_started_for_one_message_has_a_launcher(monkeypatch, program, parent, found):
    flag = [] if parent is None else ["--parent-pid", str(parent)]
    monkeypatch.setattr(sys, "argv", [program, "--token", "t", *flag, "--insecure"])
    assert lease.launcher() == (os.getppid() if found else None)


def test_a_launcher_that_has_ended_gives_no_lease():
    process = subprocess.Popen(["true"])
    process.wait()
    with pytest.raises(ProcessLookupError):
        lease.lease_of(process.pid)


def test_a_lease_is_of_our_own_parent_only():
    with subprocess.Popen(["sleep", "600"]) as process:
        with pytest.raises(ProcessLookupError, match="has ended"):
            lease.lease_of(process.pid)
        process.kill()


def test_it_is_over_when_one_of_its_processes_ends():
    stays, goes = subprocess.Popen(["sleep", "600"]), subprocess.Popen(["sleep", "600"])
    descriptors = [os.pidfd_open(process.pid) for process in (stays, goes)]
    over = threading.Event()
    try:
        lease.when_over(descriptors, over.set)
        assert not select.select(descriptors, [], [], 0)[0] and not over.is_set()
        goes.kill()
        assert over.wait(30)
    finally:
        for process in (stays, goes):
            process.kill()
            process.wait()
        for descriptor in descriptors:
            os.close(descriptor)
