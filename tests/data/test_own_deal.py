"""Dealing a site's own images: exact shares, whole groups, nothing learnt from test patients."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from fedapp.data.own import Entry
from fedapp.data.own.deal import ASIDE, TEST, TRAIN, VAL, deal
from fedapp.settings import SplitSettings

SHARES = SplitSettings()


def entry(name: str, label: str = "a", group: str = "", part: str = "") -> Entry:
    return Entry(Path(name), name, label, part, group)


def many(count: int, **fields: str) -> list[Entry]:
    return [entry(f"{k:03}.png", **fields) for k in range(count)]


def test_single_images_are_dealt_by_the_exact_shares():
    parts = deal(many(100), SHARES, 0, "north")
    assert [parts.count(part) for part in (TRAIN, VAL, TEST)] == [70, 10, 20]


def test_unlabelled_images_are_for_training_and_do_not_count():
    parts = deal([*many(10), *(entry(f"u{k}", "") for k in range(90))], SHARES, 0, "north")
    assert [parts.count(part) for part in (TRAIN, VAL, TEST)] == [97, 1, 2]
    assert set(parts[10:]) == {TRAIN}


def test_a_split_of_the_sites_own_stands():
    entries = [entry("a", part=TEST), entry("b", part=TRAIN), entry("c", "", part=TRAIN)]
    assert deal(entries, SHARES, 0, "north") == (TEST, TRAIN, TRAIN)


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
        assert len(mine - {ASIDE}) <= 1
        assert ASIDE not in mine or TRAIN not in mine
    for e, p in zip(entries, parts, strict=True):
        assert e.label or p in (TRAIN, ASIDE)
        assert not (e.label and p == ASIDE)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30))
def test_shares_are_met_to_half_a_group(sizes):
    """A group goes where its middle falls, so a border is off by at most half the largest group."""
    entries = [
        entry(f"{g}-{k}.png", group=f"g{g}") for g, size in enumerate(sizes) for k in range(size)
    ]
    parts = deal(entries, SHARES, 3, "north")
    off = abs(parts.count(TRAIN) - round(len(entries) * 0.7))
    assert off <= max(sizes) / 2
