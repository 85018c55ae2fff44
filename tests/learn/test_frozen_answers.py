"""What a frozen network said, on a disk: read by the next start, else computed again."""

import logging

import pytest
import torch
from safetensors.torch import load

from fedapp.learn.frozen_answers import CachedAnswers, answers_cached_in

X = torch.rand(20, 3, 8, 8, generator=torch.Generator().manual_seed(1))


class Started:
    """A network in a process begun anew; what it was asked is counted."""

    def __init__(self, of="weights", width=2):
        self.asked = 0
        self.recalled = CachedAnswers(self._answer, width, of)

    def _answer(self, x):
        self.asked += len(x)
        return x.flatten(1)[:, : self.recalled._width] / 3

    def __call__(self, folder, x=X):
        with answers_cached_in(folder):
            return self.recalled(x)


def test_a_second_start_runs_nothing_and_has_the_same_bits(tmp_path):
    first, second = Started(), Started()
    found = first(tmp_path)
    assert first.asked == 32  # pieces of 16
    assert torch.equal(second(tmp_path, X.flip(0)), found.flip(0)) and second.asked == 0


def test_what_is_new_is_added(tmp_path):
    Started()(tmp_path, X[:16])
    second, third = Started(), Started()
    second(tmp_path)
    assert second.asked == 16
    third(tmp_path)
    assert third.asked == 0


def test_nothing_new_writes_nothing(tmp_path):
    Started()(tmp_path)
    [file] = tmp_path.iterdir()
    before = file.stat().st_ino
    Started()(tmp_path)
    assert file.stat().st_ino == before


@pytest.mark.parametrize("other", [{"of": "other weights"}, {"width": 3}])
def test_another_network_has_a_file_of_its_own(tmp_path, other):
    Started()(tmp_path)
    second = Started(**other)
    second(tmp_path)
    assert second.asked == 32 and len(list(tmp_path.iterdir())) == 2


def test_the_same_bytes_in_another_shape_are_another_input(tmp_path):
    Started()(tmp_path)
    second = Started()
    second(tmp_path, X.view(20, 3, 4, 16))
    assert second.asked == 32


def test_a_damaged_file_is_computed_again_with_a_line(tmp_path, caplog):
    found = Started()(tmp_path)
    [path] = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:300])
    second, third = Started(), Started()
    with caplog.at_level(logging.WARNING):
        assert torch.equal(second(tmp_path), found) and second.asked == 32
    [line] = caplog.messages
    assert "features in" in line and "damaged; computing them again" in line
    third(tmp_path)
    assert third.asked == 0  # it was written over


def test_a_folder_that_cannot_be_written_to_costs_a_line(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        Started()(tmp_path / "file")
    [line] = caplog.messages
    assert "features not kept" in line


def test_only_the_networks_used_last_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("fedapp.learn.frozen_answers.MAX_DISK_BYTES", 2 * 700)
    for name in "abac":
        Started(name)(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    old = Started("a")
    old(tmp_path)
    assert old.asked == 0  # `b` went


def test_what_is_kept_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("fedapp.learn.frozen_answers.MAX_CACHED_NUMBERS", 30)
    Started()(tmp_path, X[:15])
    Started()(tmp_path)
    [file] = tmp_path.iterdir()
    assert len(load(file.read_bytes()[32:])["keys"]) == 15
