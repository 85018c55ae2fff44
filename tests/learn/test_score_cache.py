"""The cache of scores: round trips, what a key holds, how many are kept."""

from dataclasses import replace

import pytest
import torch

from fedapp.learn.model_caches import MAX_SCORES, Score, ScoreKey, score_cache

KEY = ScoreKey("a" * 64, site=1, data="f" * 16, passes=3, dropout=0.5, precision="float32", seed=0)


def never():
    raise AssertionError("computed again")


@pytest.mark.parametrize("score", [
    Score(torch.tensor([[0.1, 0.9]]), 1 / 3), Score(torch.empty(0, 2), 0.5),
    Score(torch.rand(3, 2), None, usable=False),
])  # fmt: skip
def test_a_score_comes_back_exactly(tmp_path, score):
    score_cache(3, 2, tmp_path / "scores").get_or_make(KEY.name, lambda: score)
    again = score_cache(3, 2, tmp_path / "scores").get_or_make(KEY.name, never)
    assert torch.equal(again.probabilities, score.probabilities)
    assert (again.accuracy, again.usable) == (score.accuracy, score.usable)


@pytest.mark.parametrize("change", [
    {"model": "b" * 64}, {"site": 2}, {"data": "0" * 16}, {"passes": 4}, {"dropout": 0.1},
    {"seed": 1}, {"precision": "bfloat16"},
])  # fmt: skip
def test_everything_that_a_score_depends_on_is_in_its_key(change):
    assert replace(KEY, **change).name != KEY.name


@pytest.mark.parametrize("images", [0, 1000])
@pytest.mark.parametrize("root", [None, "scores"])
def test_as_many_scores_as_a_site_needs_stay(tmp_path, root, images):
    """In memory exactly so many; on the disk no more, and of all but the tiniest no fewer."""
    cache = score_cache(images, 10, tmp_path / root if root else None)
    names = [replace(KEY, model=f"{k:064x}").name for k in range(MAX_SCORES + 2)]
    for name in names:
        cache.put(name, Score(torch.zeros(images, 10), 0.5))
    assert [name for name in names if name in cache] == names[2:]
    if root:
        assert len(list((tmp_path / root).iterdir())) in range(MAX_SCORES, MAX_SCORES + 3)
