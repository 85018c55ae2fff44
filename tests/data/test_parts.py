"""Parts of a site's data: supervision by labels, by bags, or none."""

import pytest
import torch

from fedapp.core.errors import DataError
from fedapp.data.sites import Bags, Part, SiteData

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
