"""The server's own labelled images: which ones, and that nothing else changes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedapp.core.errors import DataError
from fedapp.core.settings import SplitSettings
from fedapp.data.simulated_sites import SimulatedSites
from fedapp.data.split.manifest import TEST, TRAIN, VAL, Manifest
from fedapp.data.split.partition import partition
from fedapp.protocol.messages import SERVER_SITE
from tests.data.test_sites import numbers, pool

CPU = torch.device("cpu")
LABELS = np.array([0] * 700 + [1] * 250 + [2] * 50)
"""A rare class, of which about 35 samples are for training."""


def split_by(share, seed=0, **changes):
    split = SplitSettings(num_clients=5, server_share=share, **changes)
    return partition(LABELS, split, seed, "x")


def test_the_share_is_taken_evenly_over_classes():
    """0.1 of 700: 24, 23 and 23. Of 0.3 the rare class gives all it has, the others the rest."""
    assert np.bincount(LABELS[split_by(0.1).site == SERVER_SITE]).tolist() == [24, 23, 23]
    manifest = split_by(0.3)
    rare = int(((LABELS == 2) & (manifest.split == TRAIN)).sum())
    counts = np.bincount(LABELS[manifest.site == SERVER_SITE])
    assert counts.sum() == 210 and counts[2] == rare < 70
    assert abs(int(counts[0]) - int(counts[1])) <= 1


def test_nothing_is_the_servers_at_zero_and_nearly_all_at_one():
    assert not (split_by(0.0).site == SERVER_SITE).any()
    assert (
        split_by(0.0).digest() == partition(LABELS, SplitSettings(num_clients=5), 0, "x").digest()
    )
    most = split_by(0.999)
    assert ((most.site == SERVER_SITE) == (most.split == TRAIN)).sum() >= 999


def test_a_larger_share_holds_the_smaller_one():
    before: set[int] = set()
    for share in (0.01, 0.1, 0.5, 0.9):
        now = set(split_by(share).indices(SERVER_SITE, TRAIN).tolist())
        assert before <= now and len(now) == round(700 * share)
        before = now
    assert set(split_by(0.1, seed=1).indices(SERVER_SITE, TRAIN).tolist()) <= set(range(1000))
    assert split_by(0.1, seed=1).digest() != split_by(0.1).digest()


def test_validation_and_test_images_stay_where_they_were():
    plain, other = split_by(0.0), split_by(0.4)
    assert np.array_equal(plain.split, other.split)
    kept = plain.split != TRAIN
    assert np.array_equal(plain.site[kept], other.site[kept])


def test_with_bags_the_server_still_has_labels():
    manifest = split_by(0.2, bags=3)
    servers = manifest.site == SERVER_SITE
    assert manifest.bagged is not None
    bag = manifest.bagged.bag
    assert manifest.visible[servers].all() and (bag[servers] == -1).all()
    assert (bag[(manifest.split == TRAIN) & ~servers] >= 0).all()


def test_the_reserved_site_has_them_and_no_other(tmp_path):
    images = pool(400)
    split = SplitSettings(num_clients=4, server_share=0.25)
    partition(images.labels, split, 0, "x").save(tmp_path / "m")
    manifest = Manifest.load(tmp_path / "m")
    dealt = SimulatedSites(images, manifest, CPU)
    data = dealt.site(SERVER_SITE)
    own = manifest.indices(SERVER_SITE, TRAIN)
    assert data.site == SERVER_SITE and numbers(data.labelled) == own.tolist()
    assert torch.equal(data.labels, images.labels[own])
    assert len(data.unlabelled) == len(data.val) == len(data.test) == 0
    assert dealt.site(SERVER_SITE) is data
    everywhere = [n for k in range(4) for t in (*dealt.site(k).training,) for n in numbers(t)]
    assert sorted([*everywhere, *own.tolist()]) == np.flatnonzero(manifest.split == TRAIN).tolist()


def test_a_server_without_data_of_its_own_is_told_so():
    images = pool(400)
    dealt = SimulatedSites(
        images, partition(images.labels, SplitSettings(num_clients=4), 0, "x"), CPU
    )
    with pytest.raises(DataError, match=r"the server nothing: give a larger split\.server_share"):
        dealt.site(SERVER_SITE)


@pytest.mark.parametrize("part", [VAL, TEST])
def test_a_manifest_that_gives_the_server_test_images_is_refused(part):
    manifest = split_by(0.1)
    site = manifest.site.copy()
    site[np.flatnonzero(manifest.split == part)[0]] = SERVER_SITE
    with pytest.raises(DataError, match="server has samples that are not for training"):
        replace(manifest, site=site)


def test_a_server_sample_without_a_label_is_refused():
    manifest = split_by(0.1)
    with pytest.raises(DataError, match="have no label"):
        replace(manifest, visible=manifest.visible & (manifest.site != SERVER_SITE))
