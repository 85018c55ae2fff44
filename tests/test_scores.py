"""The score cache: round trips, damage, a full disk, pruning."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedapp.scores import Score, ScoreKey, ScoreStore

KEY = ScoreKey("a" * 64, site=1, data="f" * 16, passes=3, dropout=0.5, seed=0)
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
    {"seed": 1},
])  # fmt: skip
def test_everything_that_a_score_depends_on_is_in_its_key(change):
    assert replace(KEY, **change).name != KEY.name


@pytest.mark.parametrize("root", [None, "scores"])
def test_only_the_kept_models_scores_stay(tmp_path, root):
    store = ScoreStore(tmp_path / root if root else None)
    other = replace(KEY, model="b" * 64)
    for key in (KEY, other):
        store.get(key, lambda: SCORE)
    store.keep_only({KEY.model})
    store.get(KEY, never)
    store.get(other, lambda: SCORE)
    assert store.computed == 3


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
