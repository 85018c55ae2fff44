"""The score cache: round trips, damage, a full disk, pruning."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedapp.learn.scores import Score, ScoreKey, ScoreStore

KEY = ScoreKey("a" * 64, site=1, data="f" * 16, passes=3, dropout=0.5, precision="float32", seed=0)
SCORE = Score(torch.tensor([[0.1, 0.9]]), 1 / 3)


def never():
    raise AssertionError("computed again")


@pytest.mark.parametrize("score", [
    SCORE, Score(torch.empty(0, 2), 0.5), Score(torch.rand(3, 2), None, usable=False),
])  # fmt: skip
def test_a_score_comes_back_exactly(tmp_path, score):
    ScoreStore(tmp_path / "scores").get(KEY, lambda: score)
    again = ScoreStore(tmp_path / "scores").get(KEY, never)
    assert torch.equal(again.probabilities, score.probabilities)
    assert (again.accuracy, again.usable) == (score.accuracy, score.usable)


@pytest.mark.parametrize("change", [
    {"model": "b" * 64}, {"site": 2}, {"data": "0" * 16}, {"passes": 4}, {"dropout": 0.1},
    {"seed": 1}, {"precision": "bfloat16"},
])  # fmt: skip
def test_everything_that_a_score_depends_on_is_in_its_key(change):
    assert replace(KEY, **change).name != KEY.name


@pytest.mark.parametrize("root", [None, "scores"])
def test_the_scores_used_last_stay(tmp_path, root):
    store = ScoreStore(tmp_path / root if root else None)
    first, second, third = (replace(KEY, model=letter * 64) for letter in "abc")
    for key in (first, second, third, first):
        store.get(key, lambda: SCORE)
        time.sleep(0.01)  # a file system may keep time in steps of some milliseconds
    if root:
        (tmp_path / root / "cut.tmp").touch()
    store.keep_newest(2)
    store.get(first, never)
    store.get(third, never)
    store.get(second, lambda: SCORE)
    assert store.computed == 4
    assert not root or len(list((tmp_path / root).iterdir())) == 3


def test_a_damaged_file_is_computed_again(tmp_path, caplog):
    store = ScoreStore(tmp_path)
    store.get(KEY, lambda: SCORE)
    [path] = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:20])
    assert store.get(KEY, lambda: SCORE) is SCORE
    assert "is damaged" in caplog.text
    ScoreStore(tmp_path).get(KEY, never)


def test_a_full_disk_costs_a_warning_and_nothing_else(tmp_path, monkeypatch, caplog):
    def full(self, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    store = ScoreStore(tmp_path)
    store.get(KEY, lambda: SCORE)
    assert store.get(KEY, never) is SCORE
    assert "No space left" in caplog.text and not list(tmp_path.iterdir())
