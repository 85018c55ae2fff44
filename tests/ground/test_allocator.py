"""A process that works for a site keeps the memory that it frees."""

import platform
import subprocess
import sys

import pytest

from fedapp.drivers.loopback import run_loopback
from fedapp.ground import allocator
from fedapp.ground.allocator import keep_freed_memory
from fedapp.server import engine
from fedapp.site import site
from tests.small import small

FAULTS = """
import resource, torch
from fedapp.ground.allocator import keep_freed_memory
from fedapp.server import engine
from fedapp.site import site
from tests.small import small

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.zeros(1 << 24)  # 64 MiB: 16,384 pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first = faults()
keep_freed_memory()
for _ in range(4):  # until the heap has a hole for it that no small block divides
    faults()
print(first, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_freed_memory_is_used_again():
    # Of pages of any size, so that the system's page size is not in it: none against all of them.
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, check=True)
    given_back, kept = map(int, done.stdout.split())
    assert kept < given_back / 10


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: object())
    keep_freed_memory.__wrapped__()


def test_who_trains_and_who_averages_keeps_it(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(site, "keep_freed_memory", lambda: asked.append("site"))
    monkeypatch.setattr(engine, "keep_freed_memory", lambda: asked.append("server"))
    run_loopback(small(rounds__num_rounds=1, runtime__out=str(tmp_path)))
    assert {"site", "server"} == set(asked)
