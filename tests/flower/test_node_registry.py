"""Nodes that come late, are mended, say nothing, or name a number that another has."""

from dataclasses import replace

import pytest
from flwr.app import Error, Message
from flwr.common.constant import (
    HEARTBEAT_DEFAULT_INTERVAL,
    HEARTBEAT_INTERVAL_INF,
    ErrorCode,
)
from flwr.proto.node_pb2 import NodeInfo

from fedapp.protocol import flower_records
from fedapp.protocol.messages import Hello, Incoming, Origin, Refusal, SiteFacts, Task
from server_app import node_registry
from server_app.node_registry import NodeRegistry
from server_app.transport import GridTransport
from tests.flower.grids import MemoryGrid, preset, serve, sites
from tests.flower.results import rows
from tests.own import agreed
from tests.small import SMALL, small

pytestmark = pytest.mark.usefixtures("clock")

FACTS = SiteFacts(0, (1, 8, 8), ("a", "b"), 1, 1, 1, 1, "0" * 64)
KEY = "1" * 32
HELLO = flower_records.write_request(Origin("run", "0" * 16, "0" * 64), Hello(), {})
TTL = SMALL.rounds.hello_s
"""Of a first question."""


def says(answer):
    return lambda message: Message(flower_records.write_answer(Incoming(answer)), reply_to=message)


def site(number, **changes):
    return says(replace(FACTS, site=number, **changes))


def silent(message):
    return None


def refuses(reason="data.root: no such folder"):
    return says(Refusal(-1, 0, reason))


def registry(grid, said, **changes):
    experiment = small(**changes)
    return NodeRegistry(GridTransport(grid, 60.0), experiment, HELLO, KEY, said.append)


@pytest.fixture
def met():
    """Registry of a grid whose nodes are 100, 101, ...; `said` is what the person reads."""

    def make(*nodes, sites=""):
        grid = MemoryGrid({100 + k: node for k, node in enumerate(nodes)})
        said = []
        data = agreed(classes="a, b", sites=sites) if sites else SMALL.data
        made = registry(grid, said, rounds__join_wait_s=0.0, data=data)
        made.at_start()
        said.clear()
        return made, grid, said

    return make


def asked(grid, node):
    return sum(m.metadata.dst_node_id == node for push in grid.pushes for m in push)


def numbers(found):
    return [facts.site for facts in found]


def test_a_node_that_comes_is_asked_and_its_answer_found_at_the_next_call(met, clock):
    made, grid, said = met(site(0))
    grid.nodes[200] = site(1, pool_key=KEY)
    before = clock.seconds
    assert made.newcomers() == []
    assert made.newcomers() == [replace(FACTS, site=1)]
    assert made.newcomers() == []
    assert clock.seconds == before  # never waits
    assert (made.nodes, made.sharing_pool) == ({0: 100, 1: 200}, {1})
    assert asked(grid, 100) == asked(grid, 200) == 1 and said == []


@pytest.mark.parametrize(
    ("simulated", "name", "seconds"),
    [(True, "", node_registry.SETTLED_S), (False, "", 30.0), (False, "north", 30.0)],
)
def test_real_nodes_are_waited_for(clock, monkeypatch, simulated, name, seconds):
    """Each of them is one site, registered or not; a simulated node may stand for several."""
    grid, before = MemoryGrid({100: site(0)}), clock.seconds
    every = HEARTBEAT_INTERVAL_INF if simulated else HEARTBEAT_DEFAULT_INTERVAL
    info = NodeInfo(node_id=100, name=name, heartbeat_interval=every)
    monkeypatch.setattr(grid, "get_nodes", lambda: [info])
    said = []
    assert numbers(registry(grid, said, rounds__join_wait_s=30.0).at_start()) == [0]
    assert clock.seconds - before == pytest.approx(seconds, abs=0.1)
    # Until Ray has started, nothing else is printed.
    assert any(line.startswith("Ray starts: usually") for line in said) == simulated


@pytest.mark.parametrize("back_after", [70.0, 500.0])
def test_a_site_whose_power_was_cut_just_before_the_start_is_waited_for(clock, back_after):
    """Flower takes it for online for a minute, then gives its question back as lost."""
    cut = clock.seconds

    def lost(message):
        if clock.seconds < cut + back_after:
            return Message(Error(ErrorCode.NODE_UNAVAILABLE, "gone"), reply_to=message)
        return site(2)(message)

    grid = MemoryGrid({100: site(0), 101: site(1), 102: lost})
    said = []
    made = registry(grid, said, rounds__join_wait_s=200.0, split__num_clients=3)
    found = made.at_start()
    if back_after < 200:
        assert numbers(found) == [0, 1, 2]
        assert back_after <= clock.seconds - cut <= back_after + node_registry.MAX_CALLS_SKIPPED + 2
        assert made.nodes == {0: 100, 1: 101, 2: 102}
    else:
        assert numbers(found) == [0, 1] and said[-1] == "1 of 3 nodes left out"
        assert clock.seconds - cut == pytest.approx(200, abs=2)
    assert asked(grid, 102) < 30  # in no hot loop


def test_one_that_refuses_for_good_is_not_waited_for(clock):
    never = says(Refusal(-1, 0, "a term", lasting=True))
    grid, began = MemoryGrid({100: site(0), 101: site(1), 102: never}), clock.seconds
    made = registry(grid, [], rounds__join_wait_s=200.0, split__num_clients=3)
    assert numbers(made.at_start()) == [0, 1]
    assert clock.seconds - began < 1


def test_one_that_refused_is_asked_again_less_and_less_often_and_named_once(met):
    made, grid, said = met(site(0))
    grid.nodes[200] = refuses()
    asks = []
    for number in range(1, 35):
        before = asked(grid, 200)
        assert made.newcomers() == []
        asks += [number] * (asked(grid, 200) - before)
    assert asks == [1, 2, 4, 8, 16, 24, 32]
    assert said == ["node 200 cannot take part: data.root: no such folder"]
    grid.nodes[200] = site(1)  # mended
    found = [numbers(made.newcomers()) for _ in range(8)]
    assert found.count([1]) == 1 and len(said) == 1


@pytest.mark.parametrize("lasting", [False, True])
def test_one_that_signs_on_anew_is_asked_at_once(met, monkeypatch, lasting):
    made, grid, _ = met(site(0))
    info = NodeInfo(node_id=200, last_activated_at="noon")
    monkeypatch.setattr(grid, "get_nodes", lambda: [info])
    grid.nodes[200] = says(Refusal(-1, 0, "terms", lasting))
    for _ in range(40):
        made.newcomers()
    count = asked(grid, 200)
    assert count == (1 if lasting else 8)
    info.last_activated_at = "one"
    grid.nodes[200] = site(1)
    made.newcomers()
    assert numbers(made.newcomers()) == [1] and asked(grid, 200) == count + 1


def test_one_that_says_nothing_is_asked_again_when_its_question_has_expired(met, clock):
    made, grid, said = met(site(0))
    grid.nodes[200] = silent
    for _ in range(3):
        made.newcomers()
    assert asked(grid, 200) == 1
    clock.seconds += TTL
    for _ in range(3):
        made.newcomers()
    assert asked(grid, 200) == 2 and said == []


def test_a_late_answer_to_the_first_question_counts(met, clock):
    made, grid, _ = met(site(0))
    waiting = []
    grid.nodes[200] = waiting.append
    made.newcomers()
    grid._waiting["message-2"] = site(1)(waiting[0])
    clock.seconds += TTL - 1
    assert numbers(made.newcomers()) == [1] and asked(grid, 200) == 1


def test_a_number_stays_with_the_node_that_has_it_while_that_is_here(met):
    made, grid, said = met(site(0), site(1))
    grid.nodes[200] = site(1, pool_key=KEY)
    for _ in range(3):
        assert made.newcomers() == []
    assert made.nodes == {0: 100, 1: 101} and not made.sharing_pool
    assert said == [
        "node 200 cannot take part: site number 1 is taken; give every node its own partition-id"
    ]
    del grid.nodes[101]  # started again with a new key: to Flower another node
    assert [1] in [numbers(made.newcomers()) for _ in range(2)]
    assert made.nodes == {0: 100, 1: 200} and made.sharing_pool == {1}


def test_a_name_goes_with_the_key_that_was_registered_for_it(met, monkeypatch):
    """North's key cannot speak as south; a key registered without a name is not held to one."""
    made, grid, said = met(site(3, name="here"), sites="north, south, west, here")
    grid.nodes |= {
        201: site(0, name="north"),
        202: site(1, name="south"),
        203: site(2, name="west"),
    }
    keys = [NodeInfo(node_id=201, name="north"), NodeInfo(node_id=202, name="north")]
    monkeypatch.setattr(grid, "get_nodes", lambda: [*keys, NodeInfo(node_id=203)])
    made.newcomers()
    assert numbers(made.newcomers()) == [0, 2]
    assert said == [
        "site 'north' (node 202) cannot take part: its key is registered for 'north', but its "
        "site-name is 'south'; make the two equal"
    ]


def test_two_that_come_together_with_one_number(met):
    made, grid, said = met(site(0, name="west"), sites="west, east")
    grid.nodes |= {200: site(1, name="east"), 201: site(1, name="east")}
    made.newcomers()
    assert numbers(made.newcomers()) == [1] and made.nodes[1] == 200
    assert said == [
        "node 201 cannot take part: site 'east' is here already; give every node its own site-name"
    ]


def test_a_site_that_is_not_as_the_preset_says_does_not_get_the_number(met):
    made, grid, said = met(site(0, name="west"), sites="west, east")
    grid.nodes |= {200: site(1, name="east", classes=("a", "c")), 201: site(1, name="east")}
    made.newcomers()
    assert numbers(made.newcomers()) == [1] and made.nodes[1] == 201
    assert said == [
        "node 200 cannot take part: its classes is ('a', 'c'), the preset says ('a', 'b')"
    ]


def test_a_site_that_is_left_out_is_asked_again(met):
    made, _, _ = met(site(0), site(1, pool_key=KEY))
    made.leave_out(1)
    assert made.nodes == {0: 100} and not made.sharing_pool
    made.newcomers()
    assert numbers(made.newcomers()) == [1]


def test_few_are_asked_at_a_time_and_all_in_turn(met, monkeypatch):
    monkeypatch.setattr(node_registry, "MAX_POOL_MESSAGES", 2)
    made, grid, _ = met(site(0))
    grid.nodes |= {200 + k: refuses() for k in range(6)}
    clock = iter(range(2000, 3000))
    monkeypatch.setattr(node_registry.time, "monotonic", lambda: float(next(clock)))
    for _ in range(6):
        made.newcomers()
    assert max(map(len, grid.pushes)) == 2
    assert [asked(grid, 200 + k) for k in range(6)] == [2] * 6


def test_a_node_that_flower_does_not_reach_is_asked_again(met):
    made, grid, _ = met(site(0))
    grid.nodes[200] = site(1)
    grid.gone.add(200)
    made.newcomers()
    grid.gone.clear()
    made.newcomers()
    assert numbers(made.newcomers()) == [1]


# --- whole runs -----------------------------------------------------------------------------------


@pytest.fixture
def federation(tmp_path):
    """An experiment and a grid of all its sites but those in `later`, which come on demand."""

    def make(*later):
        rounds = {"rounds__join_wait_s": 0.0, "rounds__sample_rate": 1.0}
        experiment = small(runtime__out=str(tmp_path / "runs"), **rounds)
        every = sites({"preset": preset(experiment, tmp_path)}, experiment.split.num_clients)
        grid = MemoryGrid({k: node for k, node in every.items() if k - 100 not in later})
        return experiment, grid, every

    return make


def when(grid, number, then):
    """Do something while the sites are at work on a round."""
    honest = grid.nodes[100]

    def node(message):
        request = flower_records.read_request(message.content)[1]
        if isinstance(request, Task) and request.round == number:
            then()
        return honest(message)

    grid.nodes[100] = node


def test_a_node_that_comes_between_rounds_joins_the_run(federation, capsys):
    experiment, grid, every = federation(4)
    when(grid, 1, lambda: grid.nodes.update({104: every[104]}))
    summary, folder = serve(experiment, grid)
    assert "site 4 joins in round 3" in capsys.readouterr().out  # asked in round 2
    assert summary["sites"] == 5
    assert [row.get("joined") for row in rows(folder.path)] == [None, None, None, [4], None]
    assert [row["trained"] for row in rows(folder.path)] == [4, 4, 4, 5, 5]
    assert all(row["skipped"] == {} for row in rows(folder.path))


def test_a_node_that_never_answers_delays_nobody(federation, clock):
    experiment, grid, _ = federation(4)
    before = clock.seconds
    when(grid, 1, lambda: grid.nodes.update({104: silent}))
    summary, folder = serve(experiment, grid)
    assert summary["sites"] == 4 and clock.seconds == before
    assert all(row["skipped"] == {} for row in rows(folder.path))


def test_a_resumed_run_takes_back_those_that_come_later(federation, capsys):
    experiment, grid, every = federation()

    def stop():
        raise KeyboardInterrupt

    when(grid, 2, stop)
    experiment = replace(experiment, runtime=replace(experiment.runtime, run_name="cut"))
    with pytest.raises(KeyboardInterrupt):
        serve(experiment, grid)
    grid.nodes = {k: every[k] for k in (100, 101, 102)}
    when(grid, 2, lambda: grid.nodes.update({103: every[103], 104: every[104]}))
    again = replace(experiment, runtime=replace(experiment.runtime, resume=True))
    summary, folder = serve(again, grid)
    out = capsys.readouterr().out
    assert "not here yet: site 3, 4; the others go on" in out
    assert "site 3 is back in round 4" in out and "site 4 is back in round 4" in out
    assert [list(row["skipped"]) for row in rows(folder.path)] == [
        [],
        [],
        ["3", "4"],
        ["3", "4"],
        [],
    ]
    assert summary["sites"] == 5
