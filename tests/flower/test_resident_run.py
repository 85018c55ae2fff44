"""A run on three real SuperNodes: two with a resident worker, of which one is killed, one without.

The numbers are those of the loopback driver, and with the SuperNodes the workers end.
"""

import os
import re
import select
import signal
import tempfile
import threading
from pathlib import Path

import pytest

from fedapp.core.processes import all_pids, read_proc
from fedapp.experiment.config import load_experiment
from tests.deployment import BIN, deployment
from tests.flower.grids import preset
from tests.flower.results import loopback, results
from tests.small import small

ROOT = Path(__file__).parents[2]
READY = re.compile(r"resident worker (\d+) is ready")


def workers(folder):
    """Processes whose sockets lie in this folder: pidfd by pid."""
    found = {}
    for pid in all_pids():
        line = read_proc(pid, "cmdline")
        if b"client_app.resident.worker" in line and str(folder).encode() in line:
            found[pid] = os.pidfd_open(pid)
    return found


def all_end(pidfds):
    return all(select.select([descriptor], [], [], 60)[0] for descriptor in pidfds)


@pytest.fixture
def short(monkeypatch):
    """A folder for temporary files, the sockets among them; a socket's path must be short."""
    with tempfile.TemporaryDirectory(prefix="um-") as path:
        monkeypatch.setenv("TMPDIR", path)
        yield Path(path)
        for pid in workers(path):  # only where the test failed
            os.kill(pid, signal.SIGKILL)


def kill_the_first(log, killed, over):
    """Kill the first worker that a SuperNode's log tells of."""
    while not over.wait(0.2):
        if said := READY.search(log.read_text(errors="replace")):
            killed.append(int(said[1]))
            os.kill(killed[0], signal.SIGKILL)
            return


@pytest.mark.slow
@pytest.mark.timeout(1500)  # a busy machine: the processes of three SuperNodes share its cores
@pytest.mark.skipif(not (BIN / "flower-supernode").exists(), reason="Flower is not installed")
def test_workers_stay_give_the_same_numbers_and_end_with_their_supernode(tmp_path, short):
    experiment = small(
        split__num_clients=3,
        rounds__num_rounds=3,
        rounds__sample_rate=1.0,
        rounds__join_wait_s=300.0,
        rounds__deadline_s=900.0,
        runtime__out=str(tmp_path / "runs"),
    )
    file, place = preset(experiment, tmp_path), tmp_path / "flower"
    place.mkdir()
    killed, over = [], threading.Event()
    with deployment(place) as here:
        supernodes = [
            here.node(**{"partition-id": number, "worker-idle-s": idle_s})
            for number, idle_s in enumerate((600, 600, 0))
        ]
        killer = threading.Thread(target=kill_the_first, args=(here.log(1), killed, over))
        killer.start()
        said = here.run(ROOT, file, ["runtime.run_name=flower"])
        over.set()
        killer.join()
        whole = loopback(load_experiment(file, {"runtime.run_name": "loopback"}))
        assert results(tmp_path / "runs/flower") == results(whole), said

        first, second, third = (READY.findall(here.log(number).read_text()) for number in range(3))
        assert len(first) == 1 and third == []
        assert len(second) == 2 and [int(second[0])] == killed
        left = workers(short)
        assert {*left} == {int(first[0]), int(second[1])}

        supernodes[0].kill()  # and nothing else of it: it is not even waited for
        assert all_end([left[int(first[0])]])
        here.end_nodes()
        assert all_end(left.values())
    for descriptor in left.values():
        os.close(descriptor)
    assert workers(short) == {} and list(short.glob("fedapp-*/*.sock")) == []
