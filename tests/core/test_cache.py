"""The one cache: what was used last stays, within its bytes, in memory and on a disk."""

import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from fedapp.core.cache import Cache, CacheFiles, size_of
from fedapp.core.disk import STALE_S

HEAD = 32
"""Bytes of a file before its value."""


def kept(cache: Cache[bytes], *keys: str) -> list[str]:
    return [key for key in keys if key in cache]


def test_the_last_used_stay_within_the_budget() -> None:
    """Three values of 16 bytes in 40: the one not asked for goes."""
    cache = Cache[bytes](40)
    cache.put("a", b"A" * 16)
    cache.put("b", b"B" * 16)
    assert cache.get("a") == b"A" * 16
    cache.put("c", b"C" * 16)
    assert kept(cache, "a", "b", "c") == ["a", "c"]
    assert cache.used == 32


def test_one_larger_than_the_budget_is_not_kept() -> None:
    cache = Cache[bytes](40)
    cache.put("a", bytes(41))
    assert (cache.get("a"), cache.used) == (None, 0)
    cache.put("b", bytes(40))
    assert "b" in cache


def test_a_key_counts_once_with_its_last_value_and_size() -> None:
    cache = Cache[bytes](40)
    for size in (16, 20):
        cache.put("a", bytes(size))
    assert (cache.get("a"), cache.used) == (bytes(20), 20)


def test_what_is_dropped_gives_its_bytes_back() -> None:
    cache = Cache[bytes](40)
    for key in "abc":
        cache.put(key, bytes(10))
    cache.drop(["a", "never known"])
    assert cache.used == 20
    cache.keep_only({"c"})
    assert (cache.used, kept(cache, "b", "c")) == (10, ["c"])


def test_a_value_is_made_once_and_anew_when_it_is_of_something_else() -> None:
    cache, made = Cache[bytes](40), []

    def make() -> bytes:
        made.append(1)
        return bytes([len(made)])

    assert [cache.get_or_make("a", make, of)[0] for of in ("x", "x", "y", "x")] == [1, 1, 2, 3]
    assert (cache.hits, cache.misses) == (1, 3)


def test_threads_may_share_it() -> None:
    cache = Cache[bytes](50)

    def work(first: int) -> int:
        most = 0
        for i in range(2000):
            cache.put(str((first + i) % 20), bytes(10))
            cache.get(str(i % 20))
            most = max(most, cache.used)
        return most

    with ThreadPoolExecutor(4) as pool:  # 10: one more while the oldest is dropped
        assert max(pool.map(work, range(4))) <= 50 + 10
    cache.keep_only({str(i) for i in range(20)})
    assert cache.used == 10 * sum(str(i) in cache for i in range(20)) == 50


@dataclass
class Saying:
    nbytes: int


def test_the_size_of_a_value_is_that_of_what_is_in_it() -> None:
    assert size_of({"a": (np.zeros(3), b"12"), "b": [Saying(5), "xyz"]}) == 24 + 2 + 5 + 3
    assert size_of(object()) > 0


# --- on a disk ------------------------------------------------------------------------------------


def on_disk(folder: Path, budget: int = 1000) -> Cache[bytes]:
    """A cache as a process that has just begun has it."""
    return Cache(budget, CacheFiles(folder, "things", bytes, bytes))


def test_the_next_process_finds_it(tmp_path: Path) -> None:
    on_disk(tmp_path / "new" / "folder").put("a", b"A")
    again = on_disk(tmp_path / "new" / "folder")
    assert (again.get("a"), again.get("b")) == (b"A", None)
    [file] = (tmp_path / "new" / "folder").iterdir()
    file.unlink()
    assert again.get("a") == b"A"  # it is read once


def test_on_the_disk_too_the_last_used_stay_within_the_budget(tmp_path: Path) -> None:
    """Files of 32 + 10 bytes in 90; and what a killed process left half written goes in time."""
    for name, age in (("old.tmp", STALE_S + 1), ("young.tmp", 0)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    for key in "abac":
        on_disk(tmp_path, 90).get_or_make(key, lambda: bytes(10))
        time.sleep(0.01)  # a file system may keep time in steps of some milliseconds
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "c", "young.tmp"]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: HEAD // 2])


def one_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def of_another_key(path: Path) -> None:
    on_disk(path.parent).put("other", b"another value")
    path.with_name("other").replace(path)


@pytest.mark.parametrize("spoil", [cut, one_bit, of_another_key])
def test_a_damaged_file_costs_a_line_and_is_written_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil
) -> None:
    on_disk(tmp_path).put("a", b"some value")
    spoil(tmp_path / "a")
    with caplog.at_level(logging.WARNING):
        assert on_disk(tmp_path).get_or_make("a", lambda: b"some value") == b"some value"
    [line] = caplog.messages
    assert line == f"things in {tmp_path / 'a'} are damaged; computing them again"
    assert on_disk(tmp_path).get("a") == b"some value"


def test_a_disk_that_refuses_costs_a_line_and_the_value_is_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    cache = on_disk(tmp_path / "file" / "folder")
    with caplog.at_level(logging.WARNING):
        cache.put("a", b"A")
    [line] = caplog.messages
    assert "things not kept in" in line
    assert cache.get("a") == b"A"
