"""A process of this project keeps freed memory and searches for garbage less; a host's does not."""

import gc
import platform
import subprocess
import sys

import pytest

from fedapp.core import process_tuning
from fedapp.core.process_tuning import rare_garbage_collection, tune_own_process
from fedapp.server.engine import Engine
from fedapp.simulation.loopback import run_loopback
from tests.small import small

FAULTS = """
import resource, torch
from fedapp.core.process_tuning import tune_own_process

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.zeros(1 << 24)  # 64 MiB: 16,384 pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first = faults()
tune_own_process()
for _ in range(4):  # until the heap has a hole for it that no small block divides
    faults()
print(first, faults())
"""


@pytest.fixture
def is_hosts(monkeypatch):
    """A process in which nobody has said that it is ours, as the tests do (`conftest`)."""
    tune_own_process.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(
            process_tuning.ctypes, "CDLL", lambda name: pytest.fail("asked for the C library")
        )
        yield
    tune_own_process()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_freed_memory_is_used_again():
    # Of pages of any size, so that the system's page size is not in it: none against all of them.
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, check=True)
    given_back, kept = map(int, done.stdout.split())
    assert kept < given_back / 10


def test_what_was_there_is_left_out_until_the_end():
    before = gc.get_threshold()
    with rare_garbage_collection():
        assert gc.get_freeze_count() > 1000 and gc.get_threshold()[0] > before[0]
    assert gc.get_freeze_count() == 0 and gc.get_threshold() == before


def test_garbage_of_a_run_is_found():
    class Circle:
        alive = 0

        def __init__(self):
            Circle.alive += 1
            self.itself = self

        def __del__(self):
            Circle.alive -= 1

    with rare_garbage_collection():
        Circle()
        gc.collect()
        assert Circle.alive == 0


def test_an_error_leaves_it_as_it_was():
    with pytest.raises(ZeroDivisionError), rare_garbage_collection():
        raise ZeroDivisionError
    assert gc.get_freeze_count() == 0


def frozen_in_a_round(monkeypatch, tmp_path):
    """Run one round; return how many objects were left out of the search meanwhile."""
    seen = []
    measured = Engine._round
    monkeypatch.setattr(
        Engine,
        "_round",
        lambda *given: seen.append(gc.get_freeze_count()) or measured(*given),
    )
    run_loopback(small(rounds__num_rounds=1, runtime__out=str(tmp_path)))
    return seen


def test_a_run_is_one_such_time(monkeypatch, tmp_path):
    assert min(frozen_in_a_round(monkeypatch, tmp_path)) > 1000


def test_a_host_is_left_as_it_is(is_hosts, monkeypatch, tmp_path):
    thresholds = gc.get_threshold()
    gc.freeze()  # the host's own
    try:
        before = gc.get_freeze_count()
        assert max(frozen_in_a_round(monkeypatch, tmp_path)) <= before  # some go when unused
        assert gc.get_freeze_count() > before / 2 and gc.get_threshold() == thresholds
    finally:
        gc.unfreeze()
