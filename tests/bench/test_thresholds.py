"""The benchmark of thresholds: its data, its rules, what it counts."""

from types import SimpleNamespace

import numpy as np
import torch

from bench import street_numbers
from bench.street_numbers import APART, SHARES
from bench.thresholds import DATA, RULES, by_class, experiment_of, rows_of, share
from fedapp.data.sites import Audit
from fedapp.methods.prototypes.flexproto import FlexProto


def test_the_shares_are_all_of_the_images_and_1_is_most_frequent():
    assert round(sum(SHARES), 3) == 1
    assert max(SHARES) == SHARES[1] and min(SHARES) == SHARES[9]


def test_neighbours_reach_in_from_both_edges_and_hide_nothing(monkeypatch):
    images = np.zeros((2, 1, 28, 28), np.uint8)
    images[:, :, :, 4:24] = 100  # where MNIST's digits are
    monkeypatch.setattr(street_numbers, "_chosen", lambda: (images, np.array([1, 2])))
    plain, made = street_numbers.rare()["inputs"], street_numbers.crowded()["inputs"]
    assert (made >= plain).all()
    assert (made[..., : 24 - APART] == 100).all() and (made[..., 4 + APART :] == 100).all()
    assert (plain[..., :4] == 0).all(), "the images themselves stay as they are"


def test_images_of_the_same_key_are_the_same(monkeypatch):
    images = np.random.default_rng(0).integers(0, 255, (5, 1, 28, 28), dtype=np.uint8)
    monkeypatch.setattr(street_numbers, "_chosen", lambda: (images, np.arange(5)))
    first, again = (street_numbers.crowded()["inputs"] for _ in range(2))
    assert np.array_equal(first, again)


def test_one_rule_is_the_methods_the_other_one_threshold():
    lent = SimpleNamespace(centres=torch.zeros(2, 3, 4))
    flexible, fixed = (experiment_of("rare", rule, 0, {}).method for rule in RULES)
    assert flexible.cap == fixed.cap == FlexProto().cap
    assert type(flexible).thresholds is FlexProto.thresholds
    assert fixed.thresholds(lent, None).tolist() == [torch.tensor(fixed.cap).item()] * 3


def test_what_is_counted_by_hand():
    """Three images of class 0, one of class 1; one right target, one wrong one."""
    site = SimpleNamespace(data=SimpleNamespace(audit=Audit(torch.tensor([0, 0, 0, 1]))))
    targets = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.9, 0.1], [0.1, 0.9]])
    used = torch.tensor([True, True, False, False])
    counted = by_class(targets, used, torch.tensor([0.5, 0.25]), site)
    assert counted.tolist() == [[3, 1], [2, 0], [1, 0], [0.5, 0.25]]


def test_the_table_by_hand():
    run = {
        "accuracy": 80.0,
        "images": [10, 20, *[0] * 7, 10],
        "used": [5, 20, *[0] * 7, 0],
        "right": [5, 10, *[0] * 7, 0],
        "T": [0.5, 0.9, *[0.0] * 7, 0.1],
    }
    [row] = rows_of({("rare", "one threshold", 0): run})
    assert row["data"] == DATA["rare"]
    assert [row[k] for k in ("used, all", "right, all")] == ["62.5", "60.0"]
    assert [row[k] for k in ("used, 1s", "right, 1s")] == ["100.0", "50.0"]
    assert [row[k] for k in ("used, 9s", "right, 9s")] == ["0.0", ""]
    assert row["T of 1s, 9s"] == "0.90, 0.10"
    assert share([1, 0], [2, 0], (1,)) is None, "of no image nothing is right or wrong"
