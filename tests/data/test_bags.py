"""Bags as supervision: how a site's training inputs are dealt into them, and who may see what."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapp.data.dealt import Dealt
from fedapp.data.manifest import TRAIN, Manifest
from fedapp.data.partition import partition
from fedapp.data.parts import Bags
from fedapp.data.sites import SiteData
from fedapp.ground.errors import DataError
from fedapp.ground.settings import SplitSettings
from tests.data.test_sites import numbers, pool

CPU = torch.device("cpu")


def dealt(
    count: int = 400, bags: int = 4, seed: int = 0, clients: int = 4
) -> tuple[Manifest, Dealt]:
    images = pool(count)
    manifest = partition(images.labels, SplitSettings(num_clients=clients, bags=bags), seed, "x")
    return manifest, Dealt(images, manifest, CPU)


def bags_of(data: SiteData) -> Bags:
    known = data.parts["bags"].supervision
    assert isinstance(known, Bags)
    return known


@given(st.integers(1, 300), st.integers(1, 9), st.integers(1, 40), st.integers(0, 2**40))
@settings(deadline=None, max_examples=40)
def test_every_training_input_is_in_one_bag_and_the_proportions_are_exact(
    count: int, bags: int, clients: int, seed: int
) -> None:
    images = pool(count)
    manifest, sites = dealt(count, bags, seed, clients)
    for k in range(clients):
        data, wanted = sites.site(k), manifest.indices(k, TRAIN)
        assert len(data.labels) == len(data.unlabelled) == data.mu == 0
        assert numbers(data.parts["bags"].inputs) == wanted.tolist()
        bag, shares = bags_of(data).bag, bags_of(data).proportions
        assert shares.shape == (bags, 3)
        for b in range(bags):
            inside = images.labels[wanted][bag == b]
            mean = torch.nn.functional.one_hot(inside, 3).double().mean(0)
            assert torch.equal(shares[b], mean if len(inside) else torch.zeros(3).double())


def test_bags_of_a_site_have_different_mixes() -> None:
    """Dir_4(1): the share of a class in a bag, among all its inputs, has deviation 0.19."""
    _, sites = dealt(4000)
    found = torch.stack([bags_of(sites.site(k)).proportions for k in range(4)])  # [4, B, C]
    assert found.std(1).mean() > 0.08  # between the bags of one site; drawn evenly 0.03


def test_one_bag_is_the_sites_own_mix() -> None:
    manifest, sites = dealt(bags=1)
    for k in range(4):
        labels = pool(400).labels[manifest.indices(k, TRAIN)]
        assert bags_of(sites.site(k)).proportions[0].tolist() == pytest.approx(
            (torch.bincount(labels, minlength=3) / len(labels)).tolist()
        )


def test_bags_move_no_image_and_draws_are_keyed_by_site() -> None:
    plain = partition(pool(400).labels, SplitSettings(num_clients=4), 0, "x")
    with_bags, _ = dealt()
    assert np.array_equal(plain.site, with_bags.site)
    assert np.array_equal(plain.split, with_bags.split)
    assert with_bags.bag is not None
    assert not np.array_equal(with_bags.bag, dealt(seed=1)[0].bag)
    again = dealt()[0]
    assert again.digest() == with_bags.digest() != plain.digest()


def test_true_labels_of_bagged_images_are_behind_the_audit_alone() -> None:
    manifest, sites = dealt()
    data = sites.site(1)
    hidden = pool(400).labels[manifest.indices(1, TRAIN)]
    assert data.audit is not None
    assert data.audit.pseudo_label_errors(hidden) == (0, len(hidden))
    behind = data.val_labels.untyped_storage().nbytes() // 8
    assert behind == int(manifest.visible.sum())  # of validation and testing, of nothing else
    assert data.parts["bags"].inputs.untyped_storage().data_ptr() == (
        data.test.untyped_storage().data_ptr()
    )


def test_a_saved_split_keeps_its_bags(tmp_path: Path) -> None:
    manifest, _ = dealt()
    manifest.save(tmp_path / "m.safetensors")
    again = Manifest.load(tmp_path / "m.safetensors")
    assert again.digest() == manifest.digest() and again.bags == 4
    assert again.bag is not None and np.array_equal(again.bag, manifest.bag)


def test_bags_count_in_the_digest_and_fall_away_where_labels_are_revealed() -> None:
    manifest, _ = dealt()
    assert manifest.bag is not None
    moved = np.where(manifest.bag >= 0, 3 - manifest.bag, -1).astype(np.int32)
    digests = {replace(manifest, bag=moved).digest(), replace(manifest, bags=5).digest()}
    assert len(digests | {manifest.digest()}) == 3
    revealed = manifest.revealed()
    assert revealed.bag is None and revealed.bags == 0 and revealed.visible.all()


@pytest.mark.parametrize("wrong", ["visible", "hidden", "beyond", "none", "dtype", "negative"])
def test_bags_that_do_not_fit_the_labels_are_refused(wrong: str) -> None:
    manifest, _ = dealt()
    assert manifest.bag is not None
    bag, bags = manifest.bag.copy(), 4
    if wrong == "visible":
        bag[manifest.visible] = 0
    elif wrong == "hidden":
        bag[np.flatnonzero(~manifest.visible)[0]] = -1
    elif wrong == "beyond":
        bag[bag == 3] = 4
    elif wrong == "negative":
        bag[bag == -1] = -2
    elif wrong == "none":
        bags = 0
    with pytest.raises(DataError, match="bag") as caught:
        replace(manifest, bags=bags, bag=bag.astype(np.int64) if wrong == "dtype" else bag)
    assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match="into 4 bags"):
        replace(manifest, bag=None)


def test_bags_leave_no_room_for_settings_of_labels() -> None:
    for changes in ({"labels": "all"}, {"label_share": 0.2}):
        with pytest.raises(ValueError, match="say nothing where bags take all"):
            SplitSettings(bags=2, **changes)  # type: ignore[arg-type]
