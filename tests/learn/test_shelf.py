"""What a frozen network said, on a disk: read by the next start, else computed again."""

import logging

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedapp.learn.networks._recalled import Recalled
from fedapp.learn.shelf import NETWORKS, features_in

X = torch.rand(20, 3, 8, 8, generator=torch.Generator().manual_seed(1))


class Started:
    """A network in a process begun anew; what it was asked is counted."""

    def __init__(self, of="weights", width=2):
        self.asked = 0
        self.recalled = Recalled(self._answer, width, of)

    def _answer(self, x):
        self.asked += len(x)
        return x.flatten(1)[:, : self.recalled._width] / 3

    def __call__(self, folder, x=X):
        with features_in(folder):
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


def test_without_a_folder_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Started()(None)
    Started().recalled(X)
    assert not list(tmp_path.iterdir())


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


def cut(path):
    path.write_bytes(path.read_bytes()[:300])


def of_another(path):
    other = path.parent / "other"
    Started("other weights")(other)
    next(other.iterdir()).replace(path)
    other.rmdir()


def one_bit(path):
    tensors = load_file(path)
    tensors["answers"].view(torch.int32)[3, 1] ^= 1
    save_file(tensors, path)


def lacking(path):
    save_file({"keys": load_file(path)["keys"]}, path)


def flat(path):
    save_file({n: t.flatten() for n, t in load_file(path).items()}, path)


@pytest.mark.parametrize("spoil", [cut, of_another, one_bit, lacking, flat])
def test_a_damaged_or_foreign_file_is_computed_again_with_a_line(tmp_path, caplog, spoil):
    found = Started()(tmp_path)
    [path] = tmp_path.iterdir()
    spoil(path)
    second, third = Started(), Started()
    with caplog.at_level(logging.WARNING):
        assert torch.equal(second(tmp_path), found) and second.asked == 32
    [line] = caplog.messages
    assert "damaged or of another network; computing them again" in line
    third(tmp_path)
    assert third.asked == 0  # it was written over


def test_a_folder_that_cannot_be_written_to_costs_a_line(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        Started()(tmp_path / "file")
    [line] = caplog.messages
    assert "features not kept" in line


def test_only_the_networks_used_last_are_kept(tmp_path):
    for name in "abac":
        Started(name)(tmp_path)
    assert len(list(tmp_path.iterdir())) == NETWORKS
    old = Started("a")
    old(tmp_path)
    assert old.asked == 0  # `b` went


def test_what_is_kept_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("fedapp.learn.networks._recalled.MOST", 30)
    Started()(tmp_path, X[:15])
    Started()(tmp_path)
    [file] = tmp_path.iterdir()
    assert len(load_file(file)["keys"]) == 15
