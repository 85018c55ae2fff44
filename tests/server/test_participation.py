"""Who may take part, and what the person is told."""

import json
from dataclasses import replace

import pytest
from pydantic_core import to_json

from fedapp.core.errors import MAX_QUOTED, RunError
from fedapp.methods.averaging.local_only import LocalOnly
from fedapp.methods.base import MethodState
from fedapp.protocol.messages import SiteFacts
from fedapp.protocol.store import ModelStore
from fedapp.server.checks import kind_of
from fedapp.server.participation import Arrivals
from fedapp.server.pool import ModelPool
from fedapp.server.run_state import RunState, state_of
from fedapp.server.standings import Standing, Standings
from tests.own import agreed

OWN = agreed(classes="a, b", sites="north, south, west")
NORTH = SiteFacts(0, (1, 8, 8), ("a", "b"), 3, 4, 2, 3, "0" * 64, name="north")
SOUTH = replace(NORTH, site=1, name="south", labelled=0)


@pytest.fixture
def door(tmp_path):
    """A run of north, which is here; `said` is what the person reads."""
    pool = ModelPool(ModelStore(tmp_path))
    pool.start((0,), b"w_0")
    state = RunState(4, MethodState(), Standings({0: Standing(NORTH)}), {0: []})
    said = []
    arrivals = Arrivals(3, OWN, kind_of(NORTH), said.append, {0})
    return arrivals, state, pool, said


def test_a_newcomer_gets_w_0_a_standing_and_an_empty_store(door):
    arrivals, state, pool, said = door
    assert arrivals.admit([SOUTH], state, pool, 5) == set()
    assert arrivals.here == {0, 1} and state.held[1] == []
    assert pool.latest(1) == replace(pool.initial, site=1)
    assert state.standings.sites[1] == Standing(SOUTH, joined=5)
    assert said == ["site 1 (south) joins in round 5"]
    # The checkpoint remembers it.
    assert state_of({"state": json.loads(to_json(state))}, LocalOnly()) == state


def test_those_who_wait_are_taken_in_once(door):
    arrivals, state, pool, said = door
    arrivals.waiting = [SOUTH]
    arrivals.admit([], state, pool, 5)
    arrivals.admit([], state, pool, 6)
    assert arrivals.here == {0, 1} and len(said) == 1 and not arrivals.waiting


def test_one_that_is_known_must_have_its_data(door):
    arrivals, state, pool, said = door
    spoilt = replace(NORTH, labelled=9, test=1)
    for _ in range(2):
        assert arrivals.admit([spoilt], state, pool, 5) == {0}
        assert arrivals.here == set()  # nothing is sent to whoever it is
    assert said == [
        "site 0 (north) left out: it holds other data than before (labelled is 9, was 3, test is "
        "1, was 3); restore its data"
    ]
    assert arrivals.admit([NORTH], state, pool, 7) == set()
    assert arrivals.here == {0} and said[1] == "site 0 (north) is back in round 7"


def test_what_a_stranger_says_of_itself_is_quoted_in_short(door):
    """It may come with 1000 other classes of 200 letters in every round of 10,000."""
    arrivals, state, pool, said = door
    for number in range(2):
        classes = tuple(f"{number}{k:0199}" for k in range(1000))
        arrivals.admit([replace(SOUTH, classes=classes)], state, pool, 5)
    assert len(said) == 2 and max(map(len, said)) <= MAX_QUOTED


def test_an_old_checkpoint_with_no_peers_and_without_joining_is_read():
    state = RunState(1, MethodState(), Standings({0: Standing(NORTH)}), {0: []})
    plain = json.loads(to_json(state))
    del plain["standings"]["sites"]["0"]["joined"]
    plain["peers"] = {}
    assert state_of({"state": plain}, LocalOnly()).standings.sites[0].joined == 0


def test_an_old_checkpoint_with_another_runs_models_is_refused():
    state = RunState(1, MethodState(), Standings({0: Standing(NORTH)}), {0: []})
    plain = {**json.loads(to_json(state)), "peers": {"1": {}}}
    with pytest.raises(RunError, match=r"runtime\.peers, which was taken out in 2\.0"):
        state_of({"state": plain}, LocalOnly())
