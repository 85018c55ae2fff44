"""`split.labels=all`: the same split with every training label visible (the paper's -SL)."""

import numpy as np
import pytest

from fedapp.core.settings import SplitSettings
from fedapp.data.split.manifest import TRAIN
from fedapp.data.split.partition import partition
from fedapp.site.federation import federation_of
from tests.small import small

LABELS = np.arange(400) % 5


def drawn(**changes):
    return partition(LABELS, SplitSettings(num_clients=7, **changes), 3, "five")


def test_revealed_hides_nothing_and_deals_as_before():
    manifest = drawn()
    revealed = manifest.revealed()
    assert revealed.visible.all() and revealed.visible.dtype == np.bool_
    assert not manifest.visible.all()  # the one it was made from stays
    for dealt in (revealed, drawn(labels="all")):
        assert np.array_equal(dealt.site, manifest.site)
        assert np.array_equal(dealt.split, manifest.split)
    assert revealed.labels_sha256 == manifest.labels_sha256
    assert manifest.digest() != revealed.digest() == revealed.revealed().digest()


@pytest.mark.parametrize("saved", [False, True], ids=["drawn", "of a file"])
def test_sites_with_all_labels_hold_the_same_images_and_no_unlabelled_ones(tmp_path, saved):
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


def test_the_labels_that_are_revealed_are_the_true_ones():
    """Site by site: the count of each class is that of the manifest's images."""
    every = small(split__labels="all")
    federation = federation_of(every)
    from fedapp.data.datasets import load_dataset

    labels = load_dataset(every.data, every.seed).labels
    for k in range(every.split.num_clients):
        indices = federation.manifest.indices(k, TRAIN)
        assert federation.dealt.site(k).labels.tolist() == labels[indices].tolist()
