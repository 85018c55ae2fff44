"""Dealing a site's own images: by class, whole groups, nothing learnt from test patients."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedapp.core.settings import SplitSettings
from fedapp.data.own import Entry
from fedapp.data.own.train_test_split import (
    SET_ASIDE,
    TEST,
    TRAIN,
    VAL,
    deal,
    groups_dealt_together,
)
from fedapp.data.split.groups import content_digest

SHARES = SplitSettings()


def entry(name, label="a", group="", part=""):
    return Entry(Path(name), name, label, part, group)


def many(count, **fields):
    return [entry(f"{k:03}.png", **fields) for k in range(count)]


def test_unlabelled_images_are_for_training_and_do_not_count():
    parts = deal([*many(10), *(entry(f"u{k}", "") for k in range(90))], SHARES, 0, "north")
    assert [parts.count(part) for part in (TRAIN, VAL, TEST)] == [97, 1, 2]
    assert set(parts[10:]) == {TRAIN}


def test_a_split_of_the_sites_own_stands():
    """For copies of one image, too."""
    entries = [entry("a", part=TEST), entry("b", part=TRAIN), entry("c", "", part=TRAIN)]
    for contents in ((), ["same"] * 3):
        assert deal(entries, SHARES, 0, "north", contents) == (TEST, TRAIN, TRAIN)


def test_no_labels_no_test_images():
    assert set(deal(many(9, label=""), SHARES, 0, "north")) == {TRAIN}
    assert deal([], SHARES, 0, "north") == ()


def test_the_deal_depends_on_seed_and_name_and_not_on_the_order():
    entries = many(50)
    first = deal(entries, SHARES, 0, "north")
    assert deal(entries[::-1], SHARES, 0, "north") == first[::-1]
    assert deal(entries, SHARES, 1, "north") != first
    assert deal(entries, SHARES, 0, "south") != first


def test_a_group_and_an_image_of_the_same_name_are_two():
    keys = [entry("x.png"), entry("y.png", group="x.png"), *many(30)]
    assert len(deal(keys, SHARES, 0, "north")) == 32


def test_images_that_come_later_move_few():
    """One more of 200 images shifts the two borders by at most one image each."""
    entries = many(200)
    before = deal(entries, SHARES, 0, "north")
    after = deal([*entries, entry("new.png")], SHARES, 0, "north")[:200]
    assert sum(a != b for a, b in zip(before, after, strict=True)) <= 2


groups = st.lists(
    st.tuples(st.sampled_from(["", "p1", "p2", "p3", "p4"]), st.sampled_from(["a", ""])),
    max_size=40,
)


@given(groups, st.integers(0, 5))
def test_no_group_is_in_two_parts_and_only_labelled_images_are_measured(rows, seed):
    entries = [entry(f"{k}.png", label, group) for k, (group, label) in enumerate(rows)]
    parts = deal(entries, SHARES, seed, "north")
    for group in {e.group for e in entries} - {""}:
        mine = {p for e, p in zip(entries, parts, strict=True) if e.group == group}
        assert len(mine - {SET_ASIDE}) <= 1
        assert SET_ASIDE not in mine or TRAIN not in mine
    for e, p in zip(entries, parts, strict=True):
        assert e.label or p in (TRAIN, SET_ASIDE)
        assert not (e.label and p == SET_ASIDE)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30))
def test_shares_are_met_to_two_groups(sizes):
    """A border is off by half a group, and by two where a part would be empty without them."""
    entries = [
        entry(f"{g}-{k}.png", group=f"g{g}") for g, size in enumerate(sizes) for k in range(size)
    ]
    parts = deal(entries, SHARES, 3, "north")
    assert abs(parts.count(TRAIN) - len(entries) * 0.7) <= 2 * max(sizes)
    assert abs(parts.count(TEST) - len(entries) * 0.2) <= 2 * max(sizes)


# --- by class -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "expected"), [
    (1, (1, 0, 0)),
    (2, (1, 0, 1)),
    (3, (1, 1, 1)),
    (4, (2, 1, 1)),
    (5, (3, 1, 1)),
    (8, (5, 1, 2)),
    (10, (7, 1, 2)),
    (20, (14, 2, 4)),
])  # fmt: skip
def test_a_class_by_hand(count, expected):
    parts = deal(many(count), SHARES, 0, "north")
    assert tuple(parts.count(part) for part in (TRAIN, VAL, TEST)) == expected


def test_without_a_share_nothing_is_for_validation():
    settings = SplitSettings(train_share=0.5, val_share=0.0)
    for count, train in ((2, 1), (3, 1), (4, 2), (10, 5)):
        parts = deal(many(count), settings, 0, "north")
        assert (parts.count(TRAIN), parts.count(VAL)) == (train, 0)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=5), st.integers(0, 5))
def test_every_class_of_three_groups_is_in_every_part(sizes, seed):
    entries = [entry(f"{c}-{k}", label=f"c{c}") for c, n in enumerate(sizes) for k in range(n)]
    parts = deal(entries, SHARES, seed, "north")
    for c, size in enumerate(sizes):
        mine = {p for e, p in zip(entries, parts, strict=True) if e.label == f"c{c}"}
        assert size < 3 or mine == {TRAIN, VAL, TEST}


def test_one_class_is_dealt_as_it_would_be_alone():
    """The degenerate identity: other classes with enough groups do not move a class's images."""
    first, second = many(30), [entry(f"b{k}", label="b") for k in range(17)]
    both = deal([*first, *second], SHARES, 0, "north")
    assert both == deal(first, SHARES, 0, "north") + deal(second, SHARES, 0, "north")


def test_rare_classes_are_dealt_as_one():
    entries = [entry(f"{c}{k}", label=f"c{c}") for c in range(5) for k in range(2)]
    parts = deal(entries, SHARES, 0, "north")
    assert [parts.count(part) for part in (TRAIN, VAL, TEST)] == [7, 1, 2]


def test_a_group_counts_for_its_most_frequent_class_the_first_by_name_of_several():
    """Three patients with more of a, and three with as many of a as of b: six of class a."""
    most = [entry(f"m{k}-{i}", label, f"m{k}") for k in range(3) for i, label in enumerate("baa")]
    tied = [entry(f"t{k}-{i}", label, f"t{k}") for k in range(3) for i, label in enumerate("ba")]
    as_they_are = deal([*most, *tied], SHARES, 0, "north")
    all_a = [Entry(e.path, e.name, "a", "", e.group) for e in (*most, *tied)]
    assert as_they_are == deal(all_a, SHARES, 0, "north")


# --- copies ---------------------------------------------------------------------------------------


def test_equal_images_are_dealt_together():
    entries = many(40)
    contents = [str(k // 2) for k in range(40)]
    parts = deal(entries, SHARES, 0, "north", contents)
    assert all(parts[k] == parts[k + 1] for k in range(0, 40, 2))
    assert [parts.count(part) for part in (TRAIN, VAL, TEST)] == [28, 4, 8]


def test_without_copies_contents_change_nothing():
    entries = many(40)
    every = [str(k) for k in range(40)]
    assert deal(entries, SHARES, 0, "north", every) == deal(entries, SHARES, 0, "north")


def test_groups_that_are_tied_to_a_third_are_one():
    """p1 and p2 share image x, p2 and p3 image y: all three are dealt as one, and p4 is not."""
    entries = [entry(f"{k}.png", group=f"p{1 + k // 2}") for k in range(8)]
    contents = ["", "x", "x", "y", "y", "", "", ""]
    assert (
        groups_dealt_together(entries, contents) == (("group", "p1"),) * 6 + (("group", "p4"),) * 2
    )
    assert groups_dealt_together(entries[::-1], contents[::-1])[::-1] == groups_dealt_together(
        entries, contents
    )
    parts = deal([*entries, *many(30)], SHARES, 0, "north", [*contents, *[""] * 30])
    assert len(set(parts[:6])) == 1


def test_an_unlabelled_copy_of_a_test_image_is_set_aside():
    entries = [*many(20), *(entry(f"u{k}", "") for k in range(20))]
    parts = deal(entries, SHARES, 0, "north", [str(k % 20) for k in range(40)])
    assert [parts[20:].count(part) for part in (TRAIN, SET_ASIDE)] == [14, 6]
    assert all((a == TRAIN) == (b == TRAIN) for a, b in zip(parts[:20], parts[20:], strict=True))


def test_contents_differ_by_pixel_and_by_shape():
    image = torch.arange(64, dtype=torch.uint8).reshape(1, 8, 8)
    assert content_digest(image) == content_digest(image.clone())
    assert content_digest(image.permute(0, 2, 1)) != content_digest(image)
    assert content_digest(torch.zeros(1, 8, 16)) != content_digest(torch.zeros(1, 16, 8))
