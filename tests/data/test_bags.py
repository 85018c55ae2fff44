"""Bags as supervision: how a site's training inputs are dealt into them, and who may see what."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedapp.core.errors import DataError
from fedapp.core.settings import SplitSettings
from fedapp.data.bag_proportions import condition_number, proportions_of
from fedapp.data.simulated_sites import SimulatedSites
from fedapp.data.sites import Bags
from fedapp.data.split.bags import BagAssignment
from fedapp.data.split.manifest import TRAIN, Manifest
from fedapp.data.split.partition import partition
from tests.data.test_sites import numbers, pool

CPU = torch.device("cpu")


def dealt(count=400, bags=4, seed=0, clients=4, **split):
    images, settings = pool(count), SplitSettings(num_clients=clients, bags=bags, **split)
    manifest = partition(images.labels, settings, seed, "x")
    return manifest, SimulatedSites(images, manifest, CPU, prior_noise=settings.prior_noise)


def bagged(manifest):
    assert manifest.bagged is not None
    return manifest.bagged


def bags_of(data):
    known = data.parts["bags"].supervision
    assert isinstance(known, Bags)
    return known


@given(st.integers(1, 300), st.integers(1, 9), st.integers(1, 40), st.integers(0, 2**40))
@settings(deadline=None, max_examples=40)
def test_every_training_input_is_in_one_bag_and_the_proportions_are_exact(
    count, bags, clients, seed
):
    images = pool(count)
    manifest, sites = dealt(count, bags, seed, clients)
    for k in range(clients):
        data, wanted = sites.site(k), manifest.indices(k, TRAIN)
        assert len(data.labels) == len(data.unlabelled) == data.mu == 0
        if len(wanted) == 0:
            assert "bags" not in data.parts
            continue
        assert numbers(data.parts["bags"].inputs) == wanted.tolist()
        bag, shares = bags_of(data).bag, bags_of(data).proportions
        assert shares.shape == (bags, 3)
        for b in range(bags):
            inside = images.labels[wanted][bag == b]
            mean = torch.nn.functional.one_hot(inside, 3).double().mean(0)
            assert torch.equal(shares[b], mean if len(inside) else torch.zeros(3).double())


def test_bags_of_a_site_have_different_mixes():
    """Dir_4(1): the share of a class in a bag, among all its inputs, has deviation 0.19."""
    _, sites = dealt(4000)
    found = torch.stack([bags_of(sites.site(k)).proportions for k in range(4)])  # [4, B, C]
    assert found.std(1).mean() > 0.08  # between the bags of one site; drawn evenly 0.03


def test_bags_move_no_image_and_draws_are_keyed_by_site():
    plain = partition(pool(400).labels, SplitSettings(num_clients=4), 0, "x")
    with_bags, _ = dealt()
    assert np.array_equal(plain.site, with_bags.site)
    assert np.array_equal(plain.split, with_bags.split)
    assert not np.array_equal(bagged(with_bags).bag, bagged(dealt(seed=1)[0]).bag)
    again = dealt()[0]
    assert again.digest() == with_bags.digest() != plain.digest()


def test_true_labels_of_bagged_images_are_behind_the_audit_alone():
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


# --- one class prevails ---------------------------------------------------------------------------


def shares_of(manifest):
    """Return each bag's class proportions, [sites, bags, classes]."""
    counts = bagged(manifest).counts
    shares: NDArray[np.float64] = counts / counts.sum(2, keepdims=True)
    return shares


@pytest.mark.parametrize("deal", ["dirichlet", "iid", "majority"])
@pytest.mark.parametrize("bags", [1, 4, 30])
def test_dominant_bags_have_equal_sizes_and_hold_all_images_once(deal, bags):
    manifest, sites = dealt(3000, bags, bag_mix="dominant", deal=deal)
    for k in range(4):
        data, sizes = sites.site(k), bagged(manifest).counts[k].sum(1)
        assert sorted(numbers(data.parts["bags"].inputs)) == manifest.indices(k, TRAIN).tolist()
        assert sizes.max() - sizes.min() <= 2 * 3  # each class is rounded by itself
        assert data.unlabelled.shape[0] == 0


def test_a_class_prevails_in_its_bags():
    """Class m mod 3 of bag m: weight 10 of 10 + 2, times U[.1, 1]."""
    shares = shares_of(dealt(9000, 6, bag_mix="dominant", deal="iid")[0])
    dominant = shares[:, np.arange(6), np.arange(6) % 3]
    assert dominant.min() > 0.4 and dominant.mean() > 0.7  # evenly dealt 1/3
    assert np.abs(shares - shares[0]).max() < 0.01  # IID sites have the same table


@pytest.mark.parametrize(
    ("bags", "least", "most"), [(10, 2.4, 8.5), (20, 2.4, 4.3), (40, 2.4, 3.5)]
)
def test_dominant_bags_of_ten_classes_tell_them_apart(bags, least, most):
    """The authors' have a condition number of some 6, 3.4 and 2.8; these are five seeds' ranges."""
    labels = torch.arange(9_600) % 10
    split = SplitSettings(num_clients=1, bags=bags, bag_mix="dominant", deal="iid")
    found = [
        condition_number(proportions_of(bagged(partition(labels, split, seed, "x")).counts[0]))
        for seed in range(5)
    ]
    assert least < min(found) and max(found) < most


def test_sites_that_differ_have_tables_of_their_own():
    shares = shares_of(dealt(9000, 6, bag_mix="dominant", dirichlet_alpha=1000.0)[0])
    assert np.abs(shares - shares[0]).max() > 0.05


def test_official_bags_repeat_images_and_leave_others_out():
    """12 bags of 3 classes: a quarter of the images (n_c C / B of each class), some repeated."""
    manifest, sites = dealt(9000, 12, bag_mix="official", deal="iid")
    known, data = bagged(manifest), sites.site(1)
    owned = len(manifest.indices(1, TRAIN))
    held = numbers(data.parts["bags"].inputs)
    assert owned / 4 - 36 <= len(held) <= owned / 4
    assert len(set(held)) < len(held) == known.counts[1].sum()
    assert set(held) | set(numbers(data.unlabelled)) == set(manifest.indices(1, TRAIN).tolist())
    bag = bags_of(data).bag
    labels = pool(9000).labels[torch.tensor(held)]
    for b in range(12):
        inside = [n for n, its in zip(held, bag.tolist(), strict=True) if its == b]
        assert len(set(inside)) == len(inside)  # within a bag nothing repeats
        found = torch.bincount(labels[bag == b], minlength=3)
        assert found.tolist() == known.counts[1, b].tolist()
    assert data.audit is not None and data.audit.pseudo_label_errors(labels) == (0, len(held))


def test_official_bags_of_sites_that_differ_take_all_of_a_rare_class():
    """Two classes are most of a site's; of the third it has fewer than most bags are to hold."""
    manifest, _ = dealt(9000, 6, clients=2, bag_mix="official", deal="majority")
    classes = pool(9000).labels.numpy()
    for k in range(2):
        own = np.bincount(classes[manifest.indices(k, TRAIN)], minlength=3)
        counts, rare = bagged(manifest).counts[k], own.argmin()
        assert counts[:, rare].max() == own[rare] and (counts[:, rare] == own[rare]).sum() >= 2
        assert (counts.sum(1) <= own.sum() / 6).all()


def test_what_is_told_can_be_wrong_while_the_manifest_is_right():
    manifest, exact = dealt(2000, deal="iid")
    noisy_manifest, told = dealt(2000, deal="iid", prior_noise=0.4)
    assert noisy_manifest.digest() == manifest.digest()
    for k in range(4):
        right, wrong = bags_of(exact.site(k)).proportions, bags_of(told.site(k)).proportions
        factors = (wrong / right)[right > 0]
        assert 0.6 <= factors.min() < 1 < factors.max() <= 1.4


def test_how_much_bags_tell_is_said_in_a_line():
    eye, even = 5 * np.eye(3, dtype=np.int32), np.full((3, 3), 2, np.int32)
    nobody, nothing = np.empty(0, np.int32), np.empty((0, 2), np.int32)
    said = BagAssignment(nobody, nothing, np.stack([eye, 0 * eye, even])).describe()
    assert said.startswith("bags: 3 at each of 2 sites; condition number of their class ")
    assert said.endswith("1 to inf; infinite: they do not tell the classes apart")
    empty = BagAssignment(nobody, nothing, np.stack([0 * eye])).describe()
    assert empty == "bags: 3 a site, all of them empty"


# --- sites that know different things -------------------------------------------------------------


def test_sites_take_turns_in_what_they_know():
    manifest, sites = dealt(2000, clients=5, knows="labels, bags, nothing", label_share=0.25)
    plain = partition(pool(2000).labels, SplitSettings(num_clients=5, label_share=0.25), 0, "x")
    known = [sites.site(k) for k in range(5)]
    assert [bool(len(data.labels)) for data in known] == [True, False, False, True, False]
    assert [data.bagged > 0 for data in known] == [False, True, False, False, True]
    assert [len(data.unlabelled) > 0 for data in known] == [True, False, True, True, False]
    assert np.array_equal(manifest.site, plain.site)
    for k in (0, 3):  # its labels are those it would have among sites that all have some
        assert np.array_equal(manifest.indices(k, TRAIN, True), plain.indices(k, TRAIN, True))
    without = SplitSettings(num_clients=5, knows="labels, nothing, nothing", label_share=0.25)
    bagless = partition(pool(2000).labels, without, 0, "x")
    assert np.array_equal(bagless.visible, manifest.visible) and bagless.bagged is None


# --- the saved split ------------------------------------------------------------------------------


@pytest.mark.parametrize("mix", ["dirichlet", "official"])
def test_a_saved_split_keeps_its_bags(tmp_path, mix):
    manifest, _ = dealt(bag_mix=mix)
    manifest.save(tmp_path / "m.safetensors")
    again = Manifest.load(tmp_path / "m.safetensors")
    assert again.digest() == manifest.digest() and again.bags == 4
    for name in ("bag", "repeats", "counts"):
        assert np.array_equal(getattr(again.bagged, name), getattr(bagged(manifest), name))


def test_bags_count_in_the_digest_and_fall_away_where_labels_are_revealed():
    manifest, _ = dealt()
    known = bagged(manifest)
    turned = BagAssignment(
        np.where(known.bag >= 0, 3 - known.bag, -1).astype(np.int32),
        known.repeats,
        known.counts[:, ::-1].copy(),
    )
    more = replace(known, counts=np.pad(known.counts, ((0, 0), (0, 1), (0, 0))))
    found = {replace(manifest, bagged=other).digest() for other in (turned, more, None)}
    assert len(found | {manifest.digest()}) == 4
    revealed = manifest.revealed()
    assert revealed.bagged is None and revealed.bags == 0 and revealed.visible.all()


def visible(manifest):
    return int(np.flatnonzero(manifest.visible)[0])


def put(array, where, value):
    array[where] = value
    return array


@pytest.mark.parametrize("change", [
    lambda m, b: {"bag": put(b.bag, visible(m), 0)},  # a visible label
    lambda m, b: {"bag": put(b.bag, np.flatnonzero(~m.visible)[0], -1)},  # moved out of its bag
    lambda m, b: {"bag": put(b.bag, b.bag == 3, 4)},
    lambda m, b: {"bag": put(b.bag, b.bag == -1, -2)},
    lambda m, b: {"bag": b.bag.astype(np.int64)},
    lambda m, b: {"counts": put(b.counts, (0, 0, 0), b.counts[0, 0, 0] + 1)},
    lambda m, b: {"repeats": np.array([[visible(m), 0]], np.int32)},
    lambda m, b: {"counts": b.counts[:, :, 1:]},
])  # fmt: skip
def test_bags_that_do_not_fit_the_split_are_refused(change):
    manifest, _ = dealt()
    known = bagged(manifest)
    copies = replace(known, bag=known.bag.copy(), counts=known.counts.copy())
    with pytest.raises(DataError, match=r"manifest: .*bag.*: make the split again") as caught:
        replace(manifest, bagged=replace(known, **change(manifest, copies)))
    assert "\n" not in str(caught.value)
