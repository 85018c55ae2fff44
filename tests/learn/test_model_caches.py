"""Parsed models and scores: each content is checked once, found again as it was, within bounds."""

from dataclasses import replace

import pytest
import torch

from fedapp.core.errors import ProtocolError
from fedapp.core.settings import TransportSettings
from fedapp.learn.model_caches import MAX_SCORES, ParsedModels, Score, ScoreKey, score_cache
from fedapp.learn.params import digest_of, schema_of, to_bytes
from fedapp.protocol.store import ModelStore

PLAIN = TransportSettings()


def content(value, size=4):
    params = {"w": torch.full((size,), float(value))}
    blob = to_bytes(params)
    return digest_of(blob), blob, schema_of(params)


class Shelf:
    """Contents by digest; counts how often it is asked."""

    def __init__(self, *blobs):
        self.blobs, self.asked = {digest_of(blob): blob for blob in blobs}, 0

    def __call__(self, digest):
        self.asked += 1
        return self.blobs[digest]


def test_a_content_is_read_once():
    digest, blob, schema = content(1)
    parsed, shelf = ParsedModels(), Shelf(blob)
    first = parsed.get(digest, shelf, schema, "it", PLAIN)
    assert torch.equal(parsed.get(digest, shelf, schema, "it", PLAIN)["w"], first["w"])
    assert shelf.asked == 1


def test_what_is_taken_out_of_a_model_stays_in_the_next():
    digest, blob, schema = content(1)
    parsed, shelf = ParsedModels(), Shelf(blob)
    parsed.get(digest, shelf, schema, "it", PLAIN).clear()
    assert parsed.get(digest, shelf, schema, "it", PLAIN).keys() == {"w"}


def test_under_another_schema_or_transport_it_is_checked_anew():
    digest, blob, schema = content(1)
    parsed, shelf = ParsedModels(), Shelf(blob)
    parsed.get(digest, shelf, schema, "it", PLAIN)
    with pytest.raises(ProtocolError, match="it: tensor w"):
        parsed.get(digest, shelf, {"w": ((5,), torch.float32)}, "it", PLAIN)
    with pytest.raises(ProtocolError, match="not a safetensors model"):
        parsed.get(digest, shelf, schema, "it", TransportSettings(compression="zlib"))
    assert shelf.asked == 3


def test_what_is_refused_is_not_kept():
    digest, blob, schema = content(float("nan"))
    parsed, shelf = ParsedModels(), Shelf(blob)
    for _ in range(2):
        with pytest.raises(ProtocolError, match="NaN"):
            parsed.get(digest, shelf, schema, "it", PLAIN)
    assert shelf.asked == 2 and parsed.cache.used == 0


def test_what_a_store_lets_go_is_forgotten_and_gives_its_memory_back(tmp_path):
    contents = [content(value) for value in (1, 2)]
    (first, _, schema), (second, _, _) = contents
    parsed, store = ParsedModels(), ModelStore(tmp_path)
    shelf = Shelf(*(store.put(blob) and blob for _, blob, _ in contents))
    for digest in (first, second):
        parsed.get(digest, shelf, schema, "it", PLAIN)
    parsed.keep_only(store, {second})
    assert parsed.cache.used == 16
    for digest in (second, first):
        parsed.get(digest, shelf, schema, "it", PLAIN)
    assert shelf.asked == 3


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
