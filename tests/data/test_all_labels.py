"""`split.labels=all`: the same split with every training label visible (the paper's -SL)."""

import numpy as np
import pytest

from fedapp.core.settings import SplitSettings
from fedapp.data.split.manifest import TEST, TRAIN, VAL, Manifest
from fedapp.data.split.partition import partition
from fedapp.site.federation import federation_of
from tests.small import small

LABELS = np.arange(400) % 5
SPLIT = SplitSettings(num_clients=7)


def drawn(**changes) -> Manifest:
    return partition(LABELS, SplitSettings(num_clients=7, **changes), 3, "five")


def test_revealed_hides_nothing_and_deals_as_before() -> None:
    manifest = drawn()
    revealed = manifest.revealed()
    assert revealed.visible.all() and revealed.visible.dtype == np.bool_
    assert not manifest.visible.all()  # the one it was made from stays
    for name in ("site", "split"):
        assert np.array_equal(getattr(revealed, name), getattr(manifest, name))
    assert (revealed.dataset, revealed.seed, revealed.labels_sha256) == (
        manifest.dataset,
        manifest.seed,
        manifest.labels_sha256,
    )
    for site in range(7):
        assert len(revealed.indices(site, TRAIN, visible=False)) == 0
        everything = revealed.indices(site, TRAIN, visible=True)
        assert np.array_equal(everything, manifest.indices(site, TRAIN))
        for part in (VAL, TEST):
            assert np.array_equal(revealed.indices(site, part), manifest.indices(site, part))


def test_its_digest_is_another_and_survives_saving(tmp_path) -> None:
    manifest = drawn()
    revealed = manifest.revealed()
    assert revealed.digest() != manifest.digest()
    assert revealed.digest() == revealed.revealed().digest()
    revealed.save(tmp_path / "all.safetensors")
    assert Manifest.load(tmp_path / "all.safetensors").digest() == revealed.digest()


def test_who_holds_what_does_not_depend_on_how_many_labels_are_seen() -> None:
    few, all_ = drawn(), drawn(labels="all")
    assert np.array_equal(few.site, all_.site) and np.array_equal(few.split, all_.split)


@pytest.mark.parametrize("saved", [False, True], ids=["drawn", "of a file"])
def test_sites_with_all_labels_hold_the_same_images_and_no_unlabelled_ones(tmp_path, saved) -> None:
    some = small()
    if saved:
        path = tmp_path / "manifest.safetensors"
        federation_of(some).manifest.save(path)
        some = small(split__manifest=str(path))
    every = small(split__labels="all", split__manifest=some.split.manifest)
    before, after = federation_of(some), federation_of(every)
    for k in range(some.split.num_clients):
        one, two = before.dealt.site(k), after.dealt.site(k)
        assert len(two.unlabelled) == 0 and two.mu in {0.0, 1.0}
        assert len(two.labels) == len(two.labelled) == len(one.labelled) + len(one.unlabelled)
        images = [*one.labelled, *one.unlabelled]
        assert sorted(x.numpy().tobytes() for x in images) == sorted(
            x.numpy().tobytes() for x in two.labelled
        )
        assert two.test.equal(one.test) and two.test_labels.equal(one.test_labels)
        assert two.val.equal(one.val)
        assert two.audit is not None and two.audit.pseudo_label_errors(two.labels[:0]) == (0, 0)


def test_the_labels_that_are_revealed_are_the_true_ones() -> None:
    """Site by site: the count of each class is that of the manifest's images."""
    every = small(split__labels="all")
    federation = federation_of(every)
    from fedapp.data.datasets import load_dataset

    labels = load_dataset(every.data, every.seed).labels
    for k in range(every.split.num_clients):
        indices = federation.manifest.indices(k, TRAIN)
        assert federation.dealt.site(k).labels.tolist() == labels[indices].tolist()
