"""When a SuperNode is restarted: the supervisor with stand-ins for it, and the decision alone."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, HEARTBEAT_PATIENCE

from fedapp.core.processes import alive, with_environment_variable
from fedapp.tools.node.supervisor import ANSWERS_S, FIRST_WAIT_S, LAST_WAIT_S, PATIENCE_S, Watch

MARK = "FEDAPP_NODE_TEST"
PARENT = """
import sys
from pathlib import Path
from fedapp.tools.node import supervisor as health
from fedapp.tools.node.status import Status
from fedapp.tools.node.supervisor import Supervisor
health.PATIENCE_S, health.ANSWERS_S, health.FIRST_WAIT_S, health.LAST_WAIT_S = 2.0, 0.5, 0.1, 0.1
trouble = Path("trouble")
Supervisor(
    [sys.executable, "child.py"], ["option"],
    lambda: trouble.read_text() if trouble.exists() else "",
    Status(Path("status.json")), health.Watch(), look_s=0.1,
).run()
"""
CHILD = """
import os, subprocess, sys, threading, time
told = int(sys.argv[1])
assert sys.argv[2:] == ["option"]
def leave():
    sys.stdin.buffer.read()
    os._exit(0)
threading.Thread(target=leave, daemon=True).start()
starts = open("starts", "a"); print(os.getpid(), file=starts, flush=True)
number = len(open("starts").readlines())
def tell():
    os.write(told, b"+")
"""
STAY = "while True:\n    tell(); time.sleep(0.2)\n"


class Here:
    """A supervisor in a folder of its own."""

    def __init__(self, folder, child):
        self.folder = folder
        (folder / "child.py").write_text(CHILD + child)
        with (folder / "log").open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PARENT],
                cwd=folder,
                env={**os.environ, MARK: str(folder)},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
            )

    def log(self):
        return (self.folder / "log").read_text()

    def starts(self):
        path = self.folder / "starts"
        return [int(line) for line in path.read_text().splitlines()] if path.exists() else []

    def state(self):
        try:
            return json.loads((self.folder / "status.json").read_text())["state"]
        except FileNotFoundError:
            return ""

    def until(self, condition):
        while not condition():  # pytest's time limit ends this
            assert self.process.poll() is None, self.log()
            time.sleep(0.02)

    def left(self):
        return alive(with_environment_variable(MARK, str(self.folder)))


@pytest.fixture
def supervised(tmp_path):
    made = []

    def start(child):
        made.append(Here(tmp_path, child))
        return made[0]

    yield start
    for here in made:
        here.process.kill()
        here.process.wait()
        for pid in here.left():
            os.kill(pid, signal.SIGKILL)


def test_one_that_dies_is_started_again_and_its_end_is_told(supervised, tmp_path):
    here = supervised(f"if number < 3:\n    tell(); os._exit(7)\n{STAY}")
    here.until(lambda: len(here.starts()) == 3 and here.state() == "online")
    assert here.log().count("the SuperNode has ended (exit code 7)") == 2
    assert here.left() == {here.process.pid, here.starts()[-1]}


def test_one_that_never_comes_online_is_started_again(supervised):
    here = supervised(f"if number == 1:\n    time.sleep(1000)\n{STAY}")
    here.until(lambda: here.state() == "online")
    assert len(here.starts()) == 2
    assert "the server answers, but the SuperNode is offline: it is ended" in here.log()
    assert here.starts()[0] not in here.left()


def test_while_the_server_is_silent_the_child_is_left_alone_and_it_says_why(supervised, tmp_path):
    child = "tell()\nwhile os.path.exists('trouble'):\n    time.sleep(0.02)\n"
    (tmp_path / "trouble").write_text("no route")
    here = supervised(child + STAY)
    here.until(lambda: here.state() == "offline")
    assert "offline: no route; the SuperNode tries again by itself" in here.log()
    (here.folder / "trouble").unlink()
    here.until(lambda: here.state() == "online")
    assert len(here.starts()) == 1


ORPHAN = "subprocess.Popen(['sleep', '1000'], start_new_session=True)"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_that_was_started_and_is_no_failure(supervised, number):
    here = supervised(f"{ORPHAN}\n{STAY}")
    # A program that starts just now has no environment for a moment, and is not seen.
    here.until(lambda: here.state() == "online" and len(here.left()) == 3)
    here.process.send_signal(number)
    assert here.process.wait() == 0
    assert here.left() == set() and here.state() == ""


SIGN_OFF = """
import signal
def sign_off(number, frame):
    signal.signal(number, signal.SIG_DFL)  # as Flower does: who asks twice is not waited for
    time.sleep(6)
    open("signed-off", "w").close(); os._exit(0)
signal.signal(signal.SIGTERM, sign_off)
"""


def test_it_may_sign_off_slowly(supervised):
    here = supervised(SIGN_OFF + STAY)
    here.until(lambda: here.state() == "online")
    here.process.terminate()
    assert here.process.wait() == 0
    assert (here.folder / "signed-off").exists()


def test_who_asks_twice_is_not_left_with_orphans(supervised):
    here = supervised(f"{SIGN_OFF}{ORPHAN}\n{STAY}")
    here.until(lambda: here.state() == "online")
    here.process.terminate()
    here.until(lambda: "ending" in here.log())
    here.process.terminate()
    assert here.process.wait() == 0
    assert here.left() == set() and not (here.folder / "signed-off").exists()


def test_what_a_dead_child_leaves_is_ended_before_the_next_one_starts(supervised):
    here = supervised(f"if number == 1:\n    {ORPHAN}; os._exit(1)\n{STAY}")
    here.until(lambda: here.state() == "online")
    assert here.left() == {here.process.pid, here.starts()[-1]}


def test_a_child_does_not_outlive_a_supervisor_that_is_killed(supervised):
    here = supervised(STAY)
    here.until(lambda: here.state() == "online")
    here.process.kill()
    here.process.wait()
    while here.left():
        time.sleep(0.02)


def test_a_full_disk_does_not_end_it(supervised, tmp_path):
    (tmp_path / "status.json").mkdir()  # cannot be replaced by a file
    here = supervised(STAY)
    here.until(lambda: "fedapp node: online" in here.log())
    assert Path(here.folder, "status.json").is_dir()


LONG = PATIENCE_S + ANSWERS_S


def started(share=0.0):
    made = Watch(lambda: share)
    made.started(100.0)
    return made


def test_the_patience_is_the_servers():
    assert PATIENCE_S == HEARTBEAT_PATIENCE * HEARTBEAT_DEFAULT_INTERVAL


def test_online_from_an_acknowledgement_until_the_servers_patience_ends():
    watch = started()
    assert not watch.online(100.0)
    watch.acknowledged(103.0)
    assert watch.online(103.0) and watch.online(103.0 + PATIENCE_S - 1)
    assert not watch.online(103.0 + PATIENCE_S)
    watch.acknowledged(200.0)
    watch.server(201.0, True)
    watch.started(202.0)
    assert not watch.online(202.0), "another SuperNode, which nobody has acknowledged yet"
    watch.server(261.0, True)
    assert not watch.given_up(262.0), "what was asked before it began does not count"


def test_one_that_never_comes_online_is_given_up_where_the_server_answers():
    watch = started()
    assert not watch.doubtful(100.0 + PATIENCE_S / 2 - 1) and watch.doubtful(100.0 + PATIENCE_S / 2)
    for now in range(130, 160):
        watch.server(float(now), True)
        assert not watch.given_up(float(now)), now
    watch.server(160.0, True)
    assert watch.given_up(160.0)


def test_one_that_goes_offline_while_it_lives_is_given_up():
    watch = started()
    for now in range(110, 410, 20):
        watch.acknowledged(float(now))
        watch.server(float(now), True)
        assert not watch.given_up(now + 19.0)
    assert not watch.given_up(390.0 + PATIENCE_S - 1) and watch.given_up(390.0 + PATIENCE_S)


def test_nobody_is_given_up_while_the_server_is_silent_nor_at_once_when_it_is_back():
    watch = started()
    watch.acknowledged(101.0)
    for now in (131.0, 200.0, 4000.0):
        watch.server(now, False)
        assert not watch.given_up(now)
    watch.server(4001.0, True)
    assert not watch.given_up(4001.0 + ANSWERS_S - 1), "Flower tries again within half a minute"
    watch.server(4005.0, False)
    watch.server(4006.0, True)
    assert not watch.given_up(4006.0 + ANSWERS_S - 1), "it was silent in between"
    assert watch.given_up(4006.0 + ANSWERS_S)


@pytest.mark.parametrize(("share", "factor"), [(0.0, 0.5), (1.0, 1.0)])
def test_waits_double_up_to_the_last_and_are_drawn_from_the_upper_half(share, factor):
    watch = started(share)
    waits = [watch.wait(101.0) for _ in range(40)]
    assert waits[:4] == [FIRST_WAIT_S * factor * 2**n for n in range(4)]
    assert set(waits[6:]) == {LAST_WAIT_S * factor}


def test_waits_are_short_again_after_one_that_stayed_online():
    watch = started()
    for _ in range(9):
        watch.wait(101.0)
    watch.started(200.0)
    watch.acknowledged(201.0)
    assert watch.wait(202.0) == LAST_WAIT_S / 2, "it fell at once"
    watch.started(300.0)
    for now in range(301, 381, 20):
        watch.acknowledged(float(now))
    assert watch.wait(382.0) == FIRST_WAIT_S / 2
