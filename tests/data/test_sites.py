"""Parts of a site's data, what a simulated site gets of a pool, and what it may not see."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapp.core.errors import DataError
from fedapp.core.settings import SplitSettings
from fedapp.data.inputs import DataSet, normalise
from fedapp.data.simulated_sites import SimulatedSites
from fedapp.data.sites import Audit, Bags, Part, SiteData
from fedapp.data.split.manifest import TEST, TRAIN, VAL
from fedapp.data.split.partition import partition

CPU = torch.device("cpu")


def pool(count, classes=3):
    """Return images whose pixels spell their number in the pool, so that they can be followed."""
    number = torch.arange(count)
    images = torch.zeros(count, 1, 8, 8, dtype=torch.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = (number // 256).byte(), (number % 256).byte()
    names = tuple("abcdefgh"[:classes])
    return DataSet(images, number % classes, names, (0.5,), (0.5,))


def numbers(images):
    return (images[:, 0, 0, 0].long() * 256 + images[:, 0, 0, 1].long()).tolist()


@given(st.integers(1, 200), st.sampled_from([1, 3, 40]), st.sampled_from([1e-6, 0.5, 1e6]))
@settings(deadline=None, max_examples=40)
def test_each_site_gets_what_the_manifest_says(count, clients, alpha):
    images = pool(count)
    split = SplitSettings(num_clients=clients, dirichlet_alpha=alpha, label_alpha=alpha)
    manifest = partition(images.labels, split, 1, "x")
    dealt = SimulatedSites(images, manifest, CPU)
    for k in range(clients):
        data = dealt.site(k)
        assert data.site == k
        for part, found, labels in (
            (manifest.indices(k, TRAIN, True), data.labelled, data.labels),
            (manifest.indices(k, TRAIN, False), data.unlabelled, None),
            (manifest.indices(k, VAL), data.val, data.val_labels),
            (manifest.indices(k, TEST), data.test, data.test_labels),
        ):
            assert numbers(found) == part.tolist()
            assert found.dtype == torch.uint8
            if labels is not None:
                assert torch.equal(labels, images.labels[part])
        hidden = images.labels[manifest.indices(k, TRAIN, False)]
        assert data.audit is not None
        assert data.audit.pseudo_label_errors(hidden) == (0, len(hidden))
        assert data.audit.pseudo_label_errors(hidden + 1) == (len(hidden), len(hidden))


def sites(seed=0):
    images = pool(400)
    manifest = partition(images.labels, SplitSettings(num_clients=4), seed, "x")
    return images, manifest, SimulatedSites(images, manifest, CPU)


def test_nothing_is_copied_per_site():
    _, _, dealt = sites()
    storages = {
        part.untyped_storage().data_ptr()
        for k in range(4)
        for part in (
            dealt.site(k).labelled,
            dealt.site(k).unlabelled,
            dealt.site(k).val,
            dealt.site(k).test,
        )
    }
    assert len(storages) == 1
    assert dealt.site(2) is dealt.site(2)


def test_hidden_labels_are_not_behind_the_visible_ones():
    """A view shares its storage: even that must hold visible labels only."""
    _, manifest, dealt = sites()
    behind = dealt.site(1).labels.untyped_storage().nbytes() // 8
    assert behind == int(manifest.visible.sum()) < len(manifest.visible)


def test_a_site_has_no_hidden_labels_in_its_fields():
    _, _, dealt = sites()
    data = dealt.site(0)
    public = [n for n in dir(data.audit) if not n.startswith("_")]
    assert public == ["complete", "pseudo_label_errors", "to"]
    assert "tensor" not in repr(data.audit)


def empty_site(**parts):
    images, labels = torch.zeros(0, 1, 8, 8, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64)
    known = Part(images, labels)
    data = SiteData(
        site=0,
        parts={"labelled": known, "unlabelled": Part(images), "val": known, "test": known},
        num_classes=3,
        mean=(0.5,),
        std=(0.5,),
        audit=None,
    )
    return data.with_parts(**parts)


def test_mu_at_its_ends():
    two = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    six = torch.zeros(6, 1, 8, 8, dtype=torch.uint8)
    assert empty_site().mu == 0.0
    known = Part(two, torch.tensor([0, 1]))
    assert empty_site(unlabelled=Part(two)).mu == 0.0
    assert empty_site(labelled=known).mu == 1.0
    assert empty_site(labelled=known, unlabelled=Part(six)).mu == 0.25


def test_the_fingerprint_changes_with_what_scores_depend_on_and_nothing_else():
    _, _, dealt = sites()
    data = dealt.site(0)
    bag, shares = torch.tensor([0, 1]), torch.eye(2, 3).double()
    bagged = Part(data.unlabelled[:2], Bags(bag, shares))
    changed = [
        data.with_parts(labelled=Part(data.labelled + 1, data.labels)),
        data.with_parts(labelled=Part(data.labelled, (data.labels + 1) % 3)),
        data.with_parts(unlabelled=Part(data.unlabelled + 1)),
        data.with_parts(unlabelled=Part(data.unlabelled[1:])),
        data.with_parts(bags=bagged),
        data.with_parts(bags=Part(bagged.inputs, Bags(bag.flip(0), shares))),
        data.with_parts(bags=Part(bagged.inputs, Bags(bag, shares.flip(0)))),
        replace(data, mean=(0.4,)),
        replace(data, std=(0.4,)),
        replace(data, num_classes=4),
        dealt.site(1),
        empty_site(),
    ]
    assert len({d.fingerprint for d in (data, *changed)}) == len(changed) + 1
    same = replace(data, site=9, audit=None).with_parts(val=data.parts["test"])
    assert (
        same.fingerprint
        == data.fingerprint
        == SimulatedSites(*sites()[:2], CPU).site(0).fingerprint
    )
    assert len(data.fingerprint) == 16


def test_images_cannot_pass_from_one_part_to_the_other_unnoticed():
    image = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    left = empty_site(labelled=Part(image, torch.tensor([0])))
    right = empty_site(unlabelled=Part(image))
    assert left.fingerprint != right.fingerprint


def test_to_the_same_device_is_the_same_value():
    data = sites()[2].site(0)
    assert data.to(CPU) is data
    moved = data.to(torch.device("meta"))
    assert moved.test_labels.device.type == moved.labelled.device.type == "meta"


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
def test_a_site_on_the_gpu_is_the_same_site():
    images, manifest, dealt = sites()
    there = SimulatedSites(images, manifest, torch.device("cuda"))
    for k in range(4):
        here, data = dealt.site(k), there.site(k)
        assert data.unlabelled.is_cuda and data.to(torch.device("cuda")) is data
        assert data.fingerprint == here.fingerprint == here.to(torch.device("cuda")).fingerprint
        assert torch.equal(data.test_labels.cpu(), here.test_labels)
        guess = torch.zeros(len(here.unlabelled), dtype=torch.int64)
        assert here.audit is not None and data.audit is not None
        expected = here.audit.pseudo_label_errors(guess)
        assert data.audit.pseudo_label_errors(guess.cuda()) == expected
        assert data.audit.pseudo_label_errors(guess) == expected
        assert torch.equal(
            normalise(data.test, (0.2,), (0.3,)).cpu(), normalise(here.test, (0.2,), (0.3,))
        )


def test_audit_by_hand():
    audit = Audit(torch.tensor([0, 1, 2, 2]))
    assert audit.pseudo_label_errors(torch.tensor([0, 2, 2, 0])) == (2, 4)
    assert Audit(torch.zeros(0, dtype=torch.int64)).pseudo_label_errors(
        torch.zeros(0, dtype=torch.int64)
    ) == (0, 0)


@pytest.mark.parametrize("wrong", [torch.tensor([0, 1]), torch.rand(4), torch.zeros(4, 3)])
def test_audit_refuses_what_are_no_classes(wrong):
    with pytest.raises(DataError, match=r"must be int64 \[4\]"):
        Audit(torch.tensor([0, 1, 2, 2])).pseudo_label_errors(wrong)


def test_a_manifest_of_other_data_is_refused():
    images, manifest, _ = sites()
    with pytest.raises(DataError, match="400 images of 3 classes, the data are 399 images"):
        SimulatedSites(pool(399), manifest, CPU)
    with pytest.raises(DataError, match="of 3 classes, the data are 400 images of 2 classes"):
        SimulatedSites(pool(400, 2), manifest, CPU)
    with pytest.raises(DataError, match="another order"):
        SimulatedSites(replace(images, labels=images.labels.flip(0)), manifest, CPU)
    SimulatedSites(
        replace(images, labels=images.labels.flip(0)), replace(manifest, labels_sha256=""), CPU
    )


@pytest.mark.parametrize("k", [-1, 4])
def test_a_site_that_is_not_dealt_to_is_refused(k):
    with pytest.raises(DataError, match=f"site {k}: .* sites 0 to 3"):
        sites()[2].site(k)


THREE = torch.arange(12).view(3, 4).float()


def bagged(bag):
    return Part(THREE, Bags(bag, torch.eye(2).double()))


def test_a_parts_supervision_is_labels_bags_or_nothing():
    labels, bag = torch.tensor([0, 1, 1]), torch.tensor([1, 0, 1])
    assert [len(part) for part in (Part(THREE), Part(THREE, labels), bagged(bag))] == [3, 3, 3]
    assert Part(THREE, labels).labels is labels
    assert len(list(Part(THREE).tensors())) == 1
    assert [t.shape for t in bagged(bag).tensors()] == [(3, 4), (3,), (2, 2)]
    for without in (Part(THREE), bagged(bag)):
        with pytest.raises(AssertionError):
            _ = without.labels


@pytest.mark.parametrize("make", [
    lambda: Part(THREE, torch.tensor([0, 1])),
    lambda: Part(THREE, torch.zeros(2, 3).long()),
    lambda: Part(THREE, torch.zeros(3, 1, 1).long()),
    lambda: bagged(torch.tensor([0, 1])),
    lambda: bagged(torch.zeros(3, 1).long()),
])  # fmt: skip
def test_labels_or_bags_of_another_shape_are_refused(make):
    with pytest.raises(DataError, match=r"part of 3 inputs .* must be \[3\]"):
        make()


def test_a_part_moves_whole_and_stays_itself_where_it_is():
    for part in (Part(THREE), Part(THREE, torch.tensor([0, 1, 1])), bagged(torch.zeros(3).long())):
        assert part.to(torch.device("cpu")) is part
        moved = part.to(torch.device("meta"))
        assert type(moved.supervision) is type(part.supervision)
        assert {t.device.type for t in moved.tensors()} == {"meta"}


def test_a_site_has_every_part_and_perhaps_bags():
    known = Part(THREE, torch.tensor([0, 1, 1]))
    parts = {"labelled": known, "unlabelled": Part(THREE), "val": known, "test": known}
    rest = {"num_classes": 2, "mean": (0.0,) * 4, "std": (1.0,) * 4, "audit": None}
    assert SiteData(0, parts, **rest).bagged == 0
    with_bags = SiteData(0, parts, **rest).with_parts(bags=bagged(torch.zeros(3).long()))
    assert with_bags.bagged == 3 and list(map(len, with_bags.training)) == [3, 3, 3]
    for wrong in ({"labelled": known}, {**parts, "tset": known}):
        with pytest.raises(DataError, match=r"site 0: has parts .* may have bags"):
            SiteData(0, wrong, **rest)
