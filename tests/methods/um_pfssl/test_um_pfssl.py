"""UM-pFSSL's server rule against Algorithms 1 to 3, without models or data."""

from dataclasses import dataclass, replace

import pytest

from fedapp.methods.base import Round
from fedapp.methods.um_pfssl.helper_lists import HelperLists
from fedapp.methods.um_pfssl.method import UmPfssl
from fedapp.protocol.messages import ModelRef, Reply, ScoredRef

METHOD = UmPfssl(helper_list_size=4, num_replaced=1, search_rounds=5, update_every=10)
SITES = tuple(range(8))


def ref(site, version=1):
    return ModelRef(site, version, f"{site:032x}{version:032x}")


@dataclass
class Pool:
    """Every site at `version`; site 7 was never trained."""

    version: int = 1

    def latest(self, site):
        return ref(site, 0 if site == 7 else self.version)

    def trained(self):
        return SITES[:-1]


def state_of(*helpers, site=0):
    scored = tuple(ScoredRef(ref(k), 1.0 - 0.1 * i) for i, k in enumerate(helpers))
    return HelperLists({site: scored})


def tasks(number, state=None, cohort=(0,), method=METHOD, pool=None, seed=3):
    rnd = Round(number, seed, SITES, frozenset(cohort), pool or Pool())
    return {t.site: t for t in next(method.server_round(state or HelperLists(), rnd))}


def test_round_zero_warms_up_every_site():
    assert {s: t.action for s, t in tasks(0).items()} == dict.fromkeys(SITES, "warmup")


def test_all_sites_search_while_t_is_below_f_and_only_the_cohort_trains():
    sent = tasks(4, cohort=(2, 5))
    assert sorted(sent) == list(SITES)
    assert [s for s, t in sent.items() if t.action == "train"] == [2, 5]
    assert all(len(t.models["newcomers"]) == 1 for s, t in sent.items() if t.action == "search")


def test_scope_sampled_asks_only_the_cohort():
    assert sorted(tasks(4, cohort=(2, 5), method=replace(METHOD, helper_scope="sampled"))) == [2, 5]


def test_search_ends_at_round_f():
    sent = tasks(5, state_of(1, 2, 3), cohort=(0,))
    assert sorted(sent) == [0]
    assert sent[0].models["newcomers"] == ()


def test_a_site_that_comes_late_searches_for_f_rounds_from_then_on():
    def searches(number):
        rnd = Round(number, 3, SITES, frozenset(), Pool(), joined={2: 7})
        return [t.site for t in next(METHOD.server_round(HelperLists(), rnd))]

    assert searches(4) == list(SITES)
    assert searches(7) == searches(11) == [2] and searches(12) == []


def test_a_site_that_comes_late_is_warmed_up_as_in_round_zero():
    rnd = Round(7, 3, SITES, frozenset(), Pool(), joined={2: 7, 3: 6})
    assert METHOD.welcome(rnd) == [tasks(0)[2]]
    assert METHOD.welcome(Round(8, 3, SITES, frozenset(), Pool(), joined={2: 7})) == []


def test_a_list_that_trains_is_filled_and_a_full_one_gets_r():
    assert len(tasks(5, state_of(1))[0].models["newcomers"]) == 2  # M - 1 - 1 free places
    assert len(tasks(4, state_of(1, 2, 3))[0].models["newcomers"]) == 1  # R


def test_newcomers_are_never_itself_nor_listed_nor_untrained():
    for seed in range(50):
        newcomers = tasks(4, state_of(1, 2), seed=seed)[0].models["newcomers"]
        assert {r.site for r in newcomers} <= {3, 4, 5, 6}
        assert len(set(newcomers)) == len(newcomers)


def test_newcomers_are_drawn_evenly():
    """1000 draws of 1 from 7 sites; chi-square with 6 d.o.f., above 38.3 one time in a million."""
    counts = dict.fromkeys(range(7), 0)
    for seed in range(1000):
        counts[tasks(4, cohort=(), seed=seed)[7].models["newcomers"][0].site] += 1
    expected = 1000 / 7
    assert sum((c - expected) ** 2 / expected for c in counts.values()) < 38.3


def test_refresh_every_nu_rounds_all_but_the_r_lowest():
    sent = tasks(10, state_of(1, 2, 3), cohort=(), pool=Pool(version=9))
    assert sent[0].models["helpers"] == (ref(1, 9), ref(2, 9), ref(3, 1))
    assert sorted(sent) == [0]  # the others have nothing to refresh: no message
    unchanged = tasks(10, state_of(1, 2, 3), cohort=())
    assert unchanged == {}
    sampled = replace(METHOD, helper_scope="sampled")
    assert tasks(10, state_of(1, 2, 3), cohort=(5,), method=sampled, pool=Pool(9)).keys() == {5}
    kept = tasks(11, state_of(1, 2, 3), cohort=(0,), pool=Pool(version=9))
    assert kept[0].models["helpers"] == (ref(1), ref(2), ref(3))


def test_where_every_peer_is_listed_all_are_refreshed():
    """Nobody is left who could take the place of the R lowest: they would stay old for ever."""

    class Few(Pool):
        def trained(self):
            return (0, 1, 2, 3)

    sent = tasks(10, state_of(1, 2, 3), pool=Few(version=9))
    assert sent[0].models["helpers"] == (ref(1, 9), ref(2, 9), ref(3, 9))
    assert sent[0].models["newcomers"] == ()


def test_replies_become_the_helper_lists_and_silent_sites_keep_theirs():
    rnd = Round(4, 0, SITES, frozenset({0}), Pool())
    rule = METHOD.server_round(state_of(1, 2, site=6), rnd)
    next(rule)
    answer = Reply(0, 4, "0" * 64, (ScoredRef(ref(3), 0.5),))
    with pytest.raises(StopIteration) as stop:
        rule.send([answer])
    assert stop.value.value.helpers == {
        6: state_of(1, 2, site=6).helpers[6],
        0: (ScoredRef(ref(3), 0.5),),
    }


def test_no_helpers_when_m_is_one():
    alone = UmPfssl(helper_list_size=1, num_replaced=0)
    assert tasks(4, method=alone)[0].models["newcomers"] == ()


def test_cost_bound_is_equation_28():
    # K M n / nu + F R K + tau K n = 100 * 5 * 20 + 30 * 2 * 100 + 0.1 * 100 * 200
    assert UmPfssl().costs(100, 0.1, 200)["cost_bound_models"] == pytest.approx(
        10_000 + 6_000 + 2_000
    )
