import json
import os
from pathlib import Path

import pytest
import torch

from fedapp.core.errors import ProtocolError, StoreError
from fedapp.core.settings import TransportSettings
from fedapp.learn.model_caches import PARSED_MODELS
from fedapp.learn.params import Schema, digest_of, to_bytes
from fedapp.protocol.messages import INITIAL_SITE, MODEL, ModelRef
from fedapp.protocol.pool_key import make_key, read_key
from fedapp.protocol.store import ModelStore
from fedapp.server.pool import ModelPool, UpdateRecord

SITES = (0, 1, 2)


@pytest.fixture
def pool(tmp_path: Path) -> ModelPool:
    pool = ModelPool(ModelStore(tmp_path))
    pool.start(SITES, b"w_0")
    return pool


def test_every_site_starts_from_w_0(tmp_path: Path) -> None:
    pool = ModelPool(ModelStore(tmp_path))
    first = pool.start(SITES, b"w_0")
    assert first == pool.initial == ModelRef(INITIAL_SITE, 0, first.digest)
    assert [pool.latest(k) for k in SITES] == [ModelRef(k, 0, first.digest) for k in SITES]
    assert pool.trained() == ()
    assert pool.get(first.digest) == b"w_0"
    assert pool.contents[1, MODEL] == UpdateRecord(0, first.digest, 0)


def test_what_cannot_be_made_again_is_on_the_disk_before_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """w_0; an upload is on the disk when a record names it."""
    written: list[str] = []
    monkeypatch.setattr(
        "os.fsync", lambda fd: written.append(Path(f"/proc/self/fd/{fd}").resolve().name)
    )
    pool = ModelPool(ModelStore(tmp_path))
    digest = pool.start(SITES, b"w_0").digest
    assert any(digest in name for name in written)


def test_upload_is_a_new_version_only_with_new_content(pool: ModelPool) -> None:
    old = pool.latest(1)
    assert pool.upload(1, digest_of(b"w_0"), b"w_0", 0) == old  # a site without labels uploads w_0
    new = pool.upload(1, digest_of(b"a"), b"a", 3)
    assert new == ModelRef(1, 1, new.digest) == pool.latest(1)
    assert pool.upload(1, digest_of(b"a"), b"a", 4) == new
    assert pool.contents[1, MODEL] == UpdateRecord(1, new.digest, 3)
    assert pool.upload(1, digest_of(b"b"), b"b", 5).version == 2
    assert pool.upload(0, digest_of(b"b"), b"b", 5).version == 1
    assert pool.trained() == (0, 1)
    assert pool.latest(2).version == 0


def test_a_site_that_comes_late_gets_w_0_and_one_with_a_model_keeps_it(pool: ModelPool) -> None:
    assert pool.join(7) == ModelRef(7, 0, pool.initial.digest) == pool.latest(7)
    mine = pool.upload(7, digest_of(b"a"), b"a", 2)
    assert pool.join(7) == mine == pool.latest(7)


def test_another_content_than_was_named_is_refused_and_changes_nothing(pool: ModelPool) -> None:
    before = dict(pool.contents)
    with pytest.raises(ProtocolError, match="not the content it names"):
        pool.upload(1, digest_of(b"b"), b"a", 1)
    assert pool.contents == before


def test_the_pools_key_is_new_each_time_and_absent_elsewhere(tmp_path: Path) -> None:
    first, second = make_key(tmp_path), make_key(tmp_path)
    assert first != second == read_key(tmp_path)
    assert read_key(tmp_path / "nowhere") == ""


def test_unknown_site(pool: ModelPool) -> None:
    for ask in (pool.latest, lambda k: pool.upload(k, digest_of(b"a"), b"a", 1)):
        with pytest.raises(ProtocolError, match="site 7 has no record"):
            ask(7)
    assert (7, MODEL) not in pool.contents


def test_keep_drops_what_nobody_refers_to(pool: ModelPool) -> None:
    helper = pool.upload(1, digest_of(b"a"), b"a", 1)
    dropped = pool.upload(1, digest_of(b"b"), b"b", 2)
    last = pool.upload(1, digest_of(b"c"), b"c", 3)
    pool.collect_garbage({helper.digest})
    assert pool.store.digests() == {pool.initial.digest, helper.digest, last.digest}
    assert dropped.digest not in pool.store.digests()
    pool.collect_garbage()
    assert pool.store.digests() == {pool.initial.digest, last.digest}


def test_what_is_dropped_is_no_longer_known_as_parsed(pool: ModelPool) -> None:
    schema: Schema = {"w": ((2,), torch.float32)}
    dropped, last = (to_bytes({"w": torch.full((2,), value)}) for value in (1.0, 2.0))
    for round, blob in enumerate((dropped, last), 1):
        ref = pool.upload(1, digest_of(blob), blob, round)
        PARSED_MODELS.get(ref.digest, pool.get, schema, "it", TransportSettings())
    before = PARSED_MODELS.cache.used
    pool.collect_garbage(more_come=True)
    assert PARSED_MODELS.cache.used == before - 8
    PARSED_MODELS.get(
        digest_of(last), {}.__getitem__, schema, "it", TransportSettings()
    )  # not read


def test_w_0_is_kept_when_every_site_has_left_it(tmp_path: Path) -> None:
    pool = ModelPool(ModelStore(tmp_path))
    first = pool.start((0,), b"w_0")
    pool.upload(0, digest_of(b"a"), b"a", 1)
    pool.collect_garbage()
    assert pool.get(first.digest) == b"w_0"


def test_records_survive_json(pool: ModelPool, tmp_path: Path) -> None:
    pool.upload(2, digest_of(b"a"), b"a", 4)
    plain = json.loads(json.dumps(pool.to_plain()))
    again = ModelPool.from_plain(ModelStore(tmp_path), plain)
    assert again.contents == pool.contents
    assert again.initial == pool.initial
    assert again.trained() == (2,)


def test_resuming_without_a_content_is_noted(
    pool: ModelPool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ref = pool.upload(2, digest_of(b"a"), b"a", 4)
    (tmp_path / ref.digest[:2] / f"{ref.digest}.safetensors").unlink()
    again = ModelPool.from_plain(ModelStore(tmp_path), pool.to_plain())
    assert again.latest(2) == ref  # site 2 holds it and goes on from it
    assert "the pool lacks the content of site 2, version 1" in caplog.text


def test_a_refused_upload_changes_no_record(
    pool: ModelPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = dict(pool.contents)

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StoreError, match="No space left"):
        pool.upload(1, digest_of(b"a"), b"a", 1)
    assert pool.contents == before
    assert pool.get(pool.latest(1).digest) == b"w_0"


def test_what_the_records_or_a_method_name_is_brought_to_the_disk_together_once(
    pool: ModelPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site that comes late warms up and trains in one round; its first model may be listed."""
    settled: list[set[str]] = []
    monkeypatch.setattr(pool.store, "sync", lambda digests: settled.append(set(digests)))
    for blob in (b"older", b"listed", b"a"):  # of versions in a round the records name the newest
        pool.upload(1, digest_of(blob), blob, 3)
    pool.add_server_content(b"mean", 3)
    pool.sync({digest_of(b"listed"), pool.initial.digest})
    pool.sync()
    assert settled == [{digest_of(b"a"), digest_of(b"mean"), digest_of(b"listed")}, set()]
