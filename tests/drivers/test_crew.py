"""Several sites at a time: the numbers of one at a time, and what happens when a process ends."""

import os
import signal
from dataclasses import replace

import pytest

from fedapp.drivers.crew import Crew, Workplace
from fedapp.drivers.loopback import Loopback, carrier_of, run_loopback
from fedapp.ground.errors import ConfigError, RunError
from fedapp.messages.protocol import INITIAL_SITE, ModelRef, Outgoing, Task
from fedapp.messages.store import ModelStore
from fedapp.methods.ditto import Ditto
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
        Crew(federation_of(small()), ModelStore(tmp_path), place, 2)


def test_a_killed_process_ends_the_run_with_a_reason_and_the_others_end_too(tmp_path):
    experiment = small()
    store = ModelStore(tmp_path / "pool")
    place = Workplace(experiment, store.root, tmp_path / "sites", None)
    own = ModelRef(INITIAL_SITE, 0, "0" * 64)
    outbox = [Outgoing(Task(site=k, round=0, action="train", own=own), ()) for k in range(2)]
    with Crew(federation_of(experiment), store, place, 2) as carrier:
        processes = [worker._process for worker in carrier._workers]
        os.kill(processes[0].pid, signal.SIGKILL)
        with pytest.raises(RunError, match=r"want of memory.*lower runtime.workers"):
            list(carrier.exchange(outbox, store.get, 60.0))
    assert not any(process.is_alive() for process in processes)
