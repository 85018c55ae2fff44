"""Several sites at a time: the numbers of one at a time, and what happens when a process ends."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fedapp.core.errors import ConfigError, RunError
from fedapp.core.processes import alive
from fedapp.methods.averaging.ditto import Ditto
from fedapp.protocol.messages import INITIAL_SITE, ModelRef, Outgoing, Task
from fedapp.protocol.store import ModelStore
from fedapp.simulation.in_process import Loopback
from fedapp.simulation.loopback import carrier_of, run_loopback
from fedapp.simulation.process_pool import ProcessPool, Workplace
from fedapp.site.federation import federation_of
from tests.small import small

RECORDS = ("per_site.csv", "traffic.csv", "evaluations.json")


def records(experiment, out, workers):
    runtime = {"out": str(out), "run_name": "it", "workers": workers}
    run_loopback(replace(experiment, runtime=replace(experiment.runtime, **runtime)))
    return {name: (out / "it" / name).read_text() for name in RECORDS}


@pytest.mark.parametrize("method", [None, Ditto()], ids=["um_pfssl", "ditto"])
def test_several_processes_give_the_numbers_of_one(tmp_path, method):
    """UM-pFSSL keeps scores at the sites, Ditto a model of each site's own."""
    changes = {"method": method} if method else {}
    experiment = small(rounds__num_rounds=2, **changes)
    alone = records(experiment, tmp_path / "alone", 0)
    assert records(experiment, tmp_path / "crew", 3) == alone


def test_one_process_is_this_one(tmp_path):
    experiment = small(runtime__workers=1)
    store = ModelStore(tmp_path / "pool")
    with carrier_of(experiment, federation_of(experiment), store, tmp_path) as carrier:
        assert type(carrier) is Loopback


def test_data_of_this_process_alone_is_refused(tmp_path):
    experiment = small(data__name=f"memory:sha256_{'0' * 64}", runtime__workers=2)
    place = Workplace(experiment, tmp_path, tmp_path, None)
    with pytest.raises(ConfigError, match="given in memory: set it to 0"):
        ProcessPool(federation_of(small()), ModelStore(tmp_path), place, 2)


def test_a_killed_process_ends_the_run_with_a_reason_and_the_others_end_too(tmp_path):
    experiment = small()
    store = ModelStore(tmp_path / "pool")
    place = Workplace(experiment, store.root, tmp_path / "sites", None)
    with ProcessPool(federation_of(experiment), store, place, 2) as carrier:
        processes = [worker._process for worker in carrier._workers]
        os.kill(processes[0].pid, signal.SIGKILL)
        with pytest.raises(RunError, match=r"want of memory.*lower runtime.workers"):
            list(carrier.exchange(outbox(2), store.get, 60.0))
    assert not any(process.is_alive() for process in processes)


def outbox(sites):
    own = ModelRef(INITIAL_SITE, 0, "0" * 64)
    return [Outgoing(Task(site=k, round=0, action="train", own=own), b"") for k in range(sites)]


class Gone(Workplace):
    """Whose data can no longer be read."""

    def open(self, number, store):
        raise ConfigError("the images are gone: bring them back")


def test_what_goes_wrong_in_a_process_ends_the_run_with_its_own_words(tmp_path):
    experiment = small()
    store = ModelStore(tmp_path / "pool")
    place = Gone(experiment, store.root, tmp_path / "sites", None)
    with ProcessPool(federation_of(experiment), store, place, 2) as carrier:
        with pytest.raises(ConfigError, match=r"^the images are gone: bring them back$"):
            list(carrier.exchange(outbox(2), store.get, 60.0))


class Asleep(Workplace):
    """Where a task takes ten minutes."""

    def open(self, number, store):
        print(os.getpid(), flush=True)
        time.sleep(600)


SERVER = """
from pathlib import Path
from fedapp.simulation.process_pool import _Worker
from tests.simulation.test_process_pool import Asleep, outbox
from tests.small import small
worker = _Worker(Asleep(small(), Path("pool"), Path("sites"), None))
worker.give(outbox(1)[0].task)
worker.answer()
"""


def test_a_process_at_work_ends_with_a_server_that_is_killed():
    """The next server of the run may begin at once: nobody else may write to the sites' folders."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    with server:
        at_work = {int(server.stdout.readline())}
        server.kill()
    try:
        until = time.monotonic() + 20
        while alive(at_work) and time.monotonic() < until:
            time.sleep(0.05)
        assert not alive(at_work)
    finally:
        for pid in alive(at_work):
            os.kill(pid, signal.SIGKILL)
