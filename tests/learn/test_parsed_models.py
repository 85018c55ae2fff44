"""Parsed models: checked once by content, never under another meaning, within their memory."""

import pytest
import torch

from fedapp.core.errors import ProtocolError
from fedapp.core.settings import TransportSettings
from fedapp.learn.model_caches import ParsedModels
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


def test_one_larger_than_the_memory_is_not_kept():
    digest, blob, schema = content(1, size=100)
    parsed, shelf = ParsedModels(memory=40), Shelf(blob)
    parsed.get(digest, shelf, schema, "it", PLAIN)
    assert parsed.cache.used == 0


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
