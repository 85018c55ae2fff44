"""Many inputs lie in a file without a name: the same numbers, and nothing left on the disk."""

import errno
import os

import pytest
import torch

from fedapp.core.errors import DataError
from fedapp.data import memory_map as memory_map
from fedapp.data.memory_map import allocate, gather_rows
from tests.own import agreed, read_site, three_sites


@pytest.fixture
def on_disk(tmp_path, monkeypatch):
    """Nothing is small enough for memory."""
    (tmp_path / "pages").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "pages"))
    monkeypatch.setattr(memory_map, "MAX_BYTES_IN_MEMORY", 0)
    return tmp_path / "pages"


def mapped(tensor):
    """Whether a tensor's memory is a file's."""
    start, here = tensor.data_ptr(), os.getpid()
    with open(f"/proc/{here}/maps") as lines:
        for line in lines:
            low, high = (int(end, 16) for end in line.split()[0].split("-"))
            if low <= start < high:
                return "pages" in line
    return False


def site(root):
    return read_site(root / "north", agreed())


def test_a_site_on_disk_is_the_site_in_memory(tmp_path, monkeypatch, request):
    three_sites(tmp_path)
    held = site(tmp_path)
    folder = request.getfixturevalue("on_disk")
    paged = site(tmp_path)
    assert paged.digest == held.digest and paged.fingerprint == held.fingerprint
    assert mapped(paged.labelled) and mapped(paged.unlabelled) and not mapped(held.labelled)
    assert list(folder.iterdir()) == []


def test_rows_are_gathered_in_their_order(on_disk):
    for kind in (torch.uint8, torch.float32):
        inputs = torch.arange(600, dtype=kind).view(200, 3)
        rows = [*range(199, 0, -1), 7]
        assert torch.equal(gather_rows(inputs, rows), inputs[rows])
        assert gather_rows(inputs, []).shape == (0, 3)


def test_what_is_small_stays_in_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    monkeypatch.setattr(memory_map, "MAX_BYTES_IN_MEMORY", 12)
    assert allocate((3, 4)).shape == (3, 4)


def test_a_full_disk_is_said_before_anything_is_read(on_disk, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(memory_map.os, "posix_fallocate", full)
    said = r"no room for 1.0 MB of decoded images \(No space left on device\): free some, or set"
    with pytest.raises(DataError, match=said):
        allocate((1000, 1000))
