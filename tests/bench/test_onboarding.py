"""The benchmark of onboarding: whose labels are hidden, who is left out, and its table by hand."""

import numpy as np

from bench.onboarding import (
    LEAST_TEST_IMAGES,
    QUICK,
    VARIANTS,
    drawn,
    hidden,
    rows_of,
    trials,
)
from fedapp.data.manifest import TEST, TRAIN, Manifest


def manifest(tests):
    """Each site has two training images, one labelled, and so many test images."""
    site = [k for k, count in enumerate(tests) for _ in range(2 + count)]
    split = [part for count in tests for part in (TRAIN, TRAIN, *[TEST] * count)]
    visible = [seen for count in tests for seen in (True, False, *[True] * count)]
    return Manifest(
        "digits", len(tests), 10, 0,
        np.array(site, np.int32), np.array(split, np.uint8), np.array(visible, np.bool_),
    )  # fmt: skip


def test_only_training_labels_of_those_left_out_are_hidden():
    before = manifest([1, 2, 1])
    after = hidden(before, [1])
    changed = np.flatnonzero(before.visible != after.visible)
    assert changed.tolist() == [3]  # the labelled training image of site 1
    assert after.visible[before.split == TEST].all()


def test_those_left_out_have_test_images_and_are_the_same_each_time():
    n = LEAST_TEST_IMAGES
    split = manifest([n, n - 1, n, 0, n + 5])
    assert {drawn(split, 2, seed) for seed in range(30)} == {(0, 2), (0, 4), (2, 4)}
    assert drawn(split, 5, 0) == (0, 2, 4)


def result(own, **beside):
    names = ("untrained", "first", "mean_peer", "average", "ensemble", "best_peer")
    return {
        "accuracy_by_round": [0.1, own - 0.1, own],
        "accuracy": {"own": own, **dict.fromkeys(names, 0.5), **beside},
    }


def test_the_table_by_hand():
    rows = {r["model"]: r for r in rows_of({"a": [result(0.6), result(0.8, average=0.9)]}, 2)}
    assert rows["own model, round 1"]["a"] == "60.0 ± 14.1"
    assert rows["own model, round 2"] == {"model": "own model, round 2", "a": "70.0 ± 14.1"}
    average = rows["plain average of all peers' weights"]
    assert average["a"] == "70.0 ± 28.3"
    assert average["own minus it, a"] == "+0.0 (SE 10.0)"  # +10 and -10
    assert average["own ahead at, a"] == "1 of 2"
    assert rows["mean over single peers"]["own minus it, a"] == "+20.0 (SE 10.0)"


def test_a_way_that_a_variant_does_not_have_is_left_empty():
    common = [
        {"accuracy_by_round": [0.1, 0.7], "accuracy": {"own": 0.7, "common": 0.6, "tuned": tuned}}
        for tuned in (0.5, None)
    ]
    rows = {r["model"]: r for r in rows_of({"a": [result(0.6)] * 2, "b": common}, 1)}
    times_mix = rows["common model times the site's class mix, no training"]
    assert times_mix["b"] == "60.0 ± 0.0" and times_mix["own minus it, b"] == "+10.0 (SE 0.0)"
    assert "a" not in times_mix and "b" not in rows["ensemble of all peers"]
    assert rows["common model tuned at the site, times its class mix"].keys() == {"model"}


def test_two_federations_of_a_seed_have_one_split_and_the_same_sites_left_out():
    um, recommended = trials(QUICK)
    assert (um.experiment.method.name, recommended.experiment.method.name) == (
        "um_pfssl",
        "prior_shift",
    )
    assert um.experiment.split == recommended.experiment.split
    assert um.left_out == recommended.left_out and um.folder != recommended.folder
    assert um.variants + recommended.variants == VARIANTS
