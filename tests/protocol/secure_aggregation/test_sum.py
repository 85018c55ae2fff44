"""A masked sum from end to end: the sum is exact, and what is sent looks like nothing."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fedapp.protocol.secure_aggregation.context import MaskError
from fedapp.protocol.secure_aggregation.fixed_point import (
    FRACTION,
    from_words,
    max_number,
    to_words,
)
from fedapp.protocol.secure_aggregation.neighbour_graph import Graph, neighbour_graph, quorum
from tests.protocol.secure_aggregation.sums import CONTEXT, QUESTION, Sum, total

STEP = 2.0**-FRACTION


@pytest.fixture
def small_ring(monkeypatch):
    """Of 12 sites each has three neighbours on either side, and two of three in a row are left."""
    module = sys.modules["fedapp.protocol.secure_aggregation.neighbour_graph"]
    monkeypatch.setattr(module, "MAX_COMPLETE_GRAPH", 11)
    monkeypatch.setattr(module, "ring_parameters", lambda members: (3, 2))
    neighbour_graph.cache_clear()
    yield
    neighbour_graph.cache_clear()


def links_of(members: int) -> Graph:
    return neighbour_graph(CONTEXT, tuple(range(members)))


def rows(sites: int, numbers: int = 5, seed: int = 0) -> np.ndarray:
    """On the grid, so that sums are exact."""
    return np.random.default_rng(seed).integers(-(2**40), 2**40, (sites, numbers)) * STEP


# --- by hand --------------------------------------------------------------------------------------


def test_three_sites_by_hand():
    """`test_vectors` makes masks and shares by hand."""
    one = Sum(np.array([[1.0, -2.0], [10.0, 0.5], [100.0, 1.5]]))
    assert one.result().tolist() == [111.0, 0.0]
    assert one.unmasked().wrong == ()


# --- identities -----------------------------------------------------------------------------------


@pytest.mark.parametrize("sites", [3, 4, 7, 12])
def test_nobody_lost_the_sum_is_that_of_the_words(sites):
    one = Sum(rows(sites))
    assert np.array_equal(one.unmasked().words, total(map(one.words, one.members)))
    assert np.array_equal(one.result(), one.rows.sum(0))


def test_masks_cover_more_words_than_a_block_has_and_none():
    for numbers in (0, 1, 2**15, 2**15 + 1, 70_000):
        one = Sum(rows(3, numbers))
        assert np.array_equal(one.result(), one.rows.sum(0))


def test_the_sum_has_the_same_bits_whatever_the_secrets_and_the_order():
    numbers = np.random.default_rng(1).normal(size=(6, 50))
    first = Sum(numbers).result()
    for seed in range(4, 8):
        other = Sum(numbers, seed=seed)
        assert not np.array_equal(other.masked(0), Sum(numbers).masked(0))
        assert np.array_equal(other.result(), first)
    order = np.random.default_rng(2).permutation(6)
    assert np.array_equal(Sum(numbers[order]).result(), first)
    exact = total(to_words(row, 6) for row in numbers)
    assert np.array_equal(first, from_words(exact, 6))


def test_a_site_that_was_killed_gives_the_same_again():
    one, again = Sum(rows(4)), Sum(rows(4))
    assert one.announcements == again.announcements
    assert one.sealed == again.sealed
    assert all(np.array_equal(one.masked(k), again.masked(k)) for k in one.members)
    assert one.opened == again.opened


# --- extremes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("sites", [3, 10])
def test_largest_and_smallest_numbers_at_all_sites(sites):
    most = max_number(sites)
    one = Sum(np.tile([most, -most, STEP, -STEP, 0.0], (sites, 1)))
    expected = np.array([sites * most, -sites * most, sites * STEP, -sites * STEP, 0])
    assert one.result() == pytest.approx(expected, rel=2**-52)
    assert one.result()[2:].tolist() == expected[2:].tolist()


@pytest.mark.parametrize("sites", [4, 6, 9, 10])
@pytest.mark.parametrize("phase", ["late", "silent", "both"])
def test_a_third_lost_at_any_phase_the_sum_is_of_those_who_added(sites, phase):
    lost = list(range(sites))[1::3][: sites // 3]
    late = {"late": lost, "silent": [], "both": lost[:1]}[phase]
    one = Sum(rows(sites), late=set(late), silent=set(lost) - set(late))
    assert len(one.responding) == sites - sites // 3
    expected = one.rows[list(one.survivors)].sum(0)
    assert np.array_equal(one.result(), expected)
    assert one.unmasked().wrong == ()


@pytest.mark.parametrize("sites", [6, 9, 10])
def test_one_more_lost_is_refused(sites):
    lost = set(range(sites // 3 + 1))
    late = Sum(rows(sites), late=lost)
    with pytest.raises(MaskError, match=rf"{sites - len(lost)} of {sites} sites are left .* must"):
        late.confirm(sites - 1)
    silent = Sum(rows(sites), silent=lost)
    with pytest.raises(MaskError, match=rf"of {sites} survivors confirmed .* {quorum(sites)} must"):
        silent.open(sites - 1)
    mute = Sum(rows(sites))  # confirmed, then lost
    few = {k: answer for k, answer in mute.opened.items() if k not in lost}
    with pytest.raises(MaskError, match=rf"^{sites - len(lost)} of {quorum(sites)} shares of site"):
        mute.unmasked(few)


def test_as_many_as_open_suffice():
    one = Sum(rows(9))
    few = {k: one.opened[k] for k in (0, 2, 3, 5, 7, 8)}
    assert np.array_equal(from_words(one.unmasked(few).words, 9), one.rows.sum(0))


def test_in_a_ring_the_sum_is_exact_too(small_ring):
    ring = links_of(12).ring
    one = Sum(rows(12), late={ring[0], ring[4]}, silent={ring[8]})
    assert len(one.step("share", 0).announcements) == 7
    assert len(one.survivors) == 10 and len(one.responding) == 9
    assert np.array_equal(one.result(), one.rows[list(one.survivors)].sum(0))
    gap = Sum(rows(12), late=set(ring[3:6]))
    with pytest.raises(MaskError, match="lie too close together"):
        gap.confirm(gap.survivors[0])


def test_in_a_ring_a_site_that_was_told_another_digest_of_all_is_in_another_sum(small_ring):
    """It cannot check the digest, having its neighbours' announcements alone; nothing fits then."""
    one, other = Sum(rows(12)), {"announced": "f" * 64}
    mine = one.sites[5].add_masks(CONTEXT, one.step("add", 5, **other), one.words(5), QUESTION)
    assert not np.array_equal(mine, one.masked(5))
    with pytest.raises(MaskError, match="its confirmation is not signed for this sum"):
        one.open(5, **other)
    told = one.sites[5].share(CONTEXT, one.step("share", 5, **other)).sealed
    one.sealed = [box for box in one.sealed if box.sender != 5] + list(told)  # type: ignore[misc]
    near = next(k.site for k in one.step("share", 5).announcements if k.site != 5)
    assert 5 not in {share.site for share in one.open(near).own}


# --- what is sent ---------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0.0, 1e-9, -1.0, 1e7])
def test_masked_words_look_uniform(number):
    """Chi-square over bytes, each of a word's eight places apart.

    With uniform words each of the 32 tests would fail by chance in one of 10^6 draws; here secrets,
    and so words, are fixed.
    """
    one = Sum(np.full((3, 50_000), number))
    words = one.masked(1).view(np.uint8).reshape(-1, 8)
    for place in range(8):
        counts = np.bincount(words[:, place], minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-6


def test_masked_words_of_two_sums_have_nothing_in_common():
    """The same numbers in another sum: the difference looks uniform too (false alarm: 10^-6)."""
    first, second = (
        Sum(np.zeros((3, 50_000)), context=replace(CONTEXT, number=number)) for number in (1, 2)
    )
    difference = first.masked(0) - second.masked(0)
    counts = np.bincount(difference.view(np.uint8), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-6
