"""A site's contents: what is new is sent, what is not stays where it is."""

import torch

from fedapp.learn.params import UNCOMPRESSED, digest_of, schema_of, to_bytes
from fedapp.methods.base import SiteReport
from fedapp.protocol.messages import MODEL, ModelRef, Task
from fedapp.protocol.store import ModelStore
from fedapp.site.held_contents import Holdings

OWN = {"w": torch.ones(2)}


def test_a_model_that_is_the_old_one_is_not_sent_and_another_is(tmp_path):
    store = ModelStore(tmp_path)
    holdings = Holdings(store, False, {MODEL: schema_of(OWN)}, UNCOMPRESSED, lambda: OWN)
    digest = store.put(to_bytes(OWN))
    task = Task(0, 1, "train", ModelRef(0, 1, digest))
    same = holdings.pack(task, SiteReport({"w": torch.ones(2)}), ())
    assert (same.contents, same.payloads, same.held) == ({MODEL: digest}, {}, {digest})
    blob = to_bytes({"w": torch.zeros(2)})
    other = holdings.pack(task, SiteReport({"w": torch.zeros(2)}), ())
    assert other.payloads == {digest_of(blob): blob} and other.held == {digest_of(blob)}
    assert store.digests() == {digest_of(blob)}
