"""Who masks with whom: the tails by exact counting, the ring by hand, whom a server may name."""

from dataclasses import replace
from math import comb

import numpy as np
import pytest

from fedapp.protocol.secure_aggregation.context import MaskError, SumContext
from fedapp.protocol.secure_aggregation.neighbour_graph import (
    CORRECTNESS_BITS,
    MAX_COMPLETE_GRAPH,
    SECURITY_BITS,
    Graph,
    neighbour_graph,
    quorum,
    ring_parameters,
)

CONTEXT = SumContext("name", "run", "e", 0, 0)
LARGE = (MAX_COMPLETE_GRAPH + 1, 1000, 4096)


def of(members: int, context: SumContext = CONTEXT) -> Graph:
    return neighbour_graph(context, tuple(range(members)))


def test_a_quorum_by_hand():
    assert [quorum(n) for n in (3, 4, 5, 6, 9, 10, 100, 1000)] == [3, 3, 4, 4, 6, 7, 67, 667]


def test_no_two_lists_have_a_quorum_and_a_third_may_be_lost():
    """2 t > n + c for every c below n / 3 and for c = 1; n - floor(n / 3) sites reach t.

    Of three one may be in league: then none may be lost.
    """
    for n in range(3, 5000):
        most_colluding = max((n - 1) // 3, 1)
        assert 2 * quorum(n) > n + most_colluding
        assert n - n // 3 >= quorum(n) or n == quorum(n) == 3


def test_of_few_everybody_is_everybodys_neighbour():
    links = of(5)
    assert all(links.holders(site) == [0, 1, 2, 3, 4] for site in range(5))
    assert links.threshold == quorum(5) and of(MAX_COMPLETE_GRAPH).half == 0


def below(members: int, marked: int, drawn: int, least: int, power: int) -> bool:
    """Whether P[at least so many of the drawn are marked] <= 2^-power / members, exactly."""
    way = comb(marked, least) * comb(members - marked, drawn - least)
    ways = 0
    for k in range(least, drawn + 1):
        ways += way
        way = way * (marked - k) * (drawn - k)
        way //= (k + 1) * (members - marked - drawn + k + 1)
    return ways * members * 2**power <= comb(members, drawn)


@pytest.mark.parametrize("members", LARGE)
def test_rows_keep_both_chances_and_are_the_smallest(members):
    half, least = ring_parameters(members)
    colluding, lost = (members - 1) // 3, members // 3

    def sure(row: int, left: int) -> bool:  # fewer are left where more than row - left are lost
        return below(members, lost, row, row - left + 1, CORRECTNESS_BITS)

    assert below(members, colluding, half, least, SECURITY_BITS)
    assert not below(members, colluding, half, least - 1, SECURITY_BITS)
    assert sure(half, least)
    assert not sure(half - 1, least - below(members, colluding, half - 1, least - 1, SECURITY_BITS))
    assert 2 * half < members - 1


def test_a_ring_by_hand():
    links = Graph((3, 1, 4, 0, 2, 5, 6), half=2, least=1)
    assert links.holders(3) == [1, 3, 4, 5, 6]
    assert links.holders(0) == [0, 1, 2, 4, 5]
    assert links.threshold == 2
    links.check(frozenset({3, 4, 2, 6, 0}))
    with pytest.raises(MaskError, match=r"^4 of 7 sites are left .* 5 must be"):
        links.check(frozenset({3, 4, 2, 6}))
    with pytest.raises(MaskError, match="lie too close together: 0 of 2 in a row are left, 1 must"):
        links.check(frozenset({3, 1, 4, 2, 0}))  # 5 and 6, in a row, are lost
    with pytest.raises(MaskError, match="too close together"):
        links.check(frozenset({1, 4, 2, 0, 5}))  # 6 and 3: the ring goes round


@pytest.mark.parametrize("members", LARGE[:2])
def test_a_ring_is_regular_and_mutual(members):
    links = of(members)
    assert sorted(links.ring) == list(range(members))
    for site in (0, 1, members - 1):
        holders = links.holders(site)
        assert holders == sorted(set(holders)) and len(holders) == 2 * links.half + 1
        assert all(site in links.holders(other) for other in holders)


def test_everybody_draws_the_same_ring_and_each_sum_another():
    first = of(600)
    neighbour_graph.cache_clear()
    assert of(600) == first
    for other in {"round": 1}, {"number": 1}, {"identity": "run2"}, {"experiment": "f"}:
        assert of(600, replace(CONTEXT, **other)).ring != first.ring
    assert neighbour_graph(CONTEXT, tuple(range(1, 601))).ring != first.ring


@pytest.mark.parametrize("seed", range(5))
def test_a_third_lost_by_chance_opens(seed):
    """Fails by chance in one of 2^30 draws; these are fixed."""
    members = 1000
    lost = np.random.default_rng(seed).permutation(members)[: members // 3]
    survivors = frozenset(range(members)) - set(lost.tolist())
    links = of(members)
    links.check(survivors)
    for site in range(members):
        assert len(survivors.intersection(links.holders(site))) >= links.threshold


def connected(links: Graph, sites: frozenset[int]) -> bool:
    first = next(iter(sites))
    found, todo = {first}, [first]
    while todo:
        near = sites.intersection(links.holders(todo.pop())) - found
        found |= near
        todo += near
    return found == sites


@pytest.mark.parametrize("seed", range(3))
def test_a_server_that_chooses_the_lost_cannot_part_the_honest(seed):
    """It names the honest of one long row as lost until sites refuse; a third colludes."""
    members = 600
    links = of(members)
    shuffled = np.random.default_rng(seed).permutation(members).tolist()
    colluding = frozenset(shuffled[: (members - 1) // 3])
    survivors = frozenset(range(members))
    for site in links.ring:
        fewer = survivors - {site}
        if site in colluding:
            continue
        try:
            links.check(fewer)
        except MaskError:
            continue
        survivors = fewer
    assert len(survivors) < members
    honest = survivors - colluding
    assert connected(links, honest)
    for site in honest:
        assert len(colluding.intersection(links.holders(site))) < links.threshold
