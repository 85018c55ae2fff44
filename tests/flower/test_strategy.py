"""PoolStrategy over a grid in memory: whole runs with real sites, and all that goes wrong."""

import re
from dataclasses import replace

import httpx
import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from google.protobuf.message import DecodeError

from fedapp.core.errors import RunError, StoreError
from fedapp.core.progress import Progress
from fedapp.protocol import flower_records
from fedapp.protocol.messages import (
    Hello,
    Incoming,
    Missing,
    ModelRef,
    Origin,
    Outgoing,
    Refusal,
    SiteFacts,
    Task,
)
from fedapp.protocol.store import ModelStore
from fedapp.server.assembly import Assembly
from server_app import carrier, node_registry, transport
from tests.flower.grids import MemoryGrid, preset, serve, sites
from tests.flower.results import loopback, results, rows
from tests.small import small

pytestmark = pytest.mark.usefixtures("clock")

FACTS = SiteFacts(0, (1, 8, 8), ("a", "b"), 1, 1, 1, 1, "0" * 64)


@pytest.fixture
def federation(tmp_path):
    """Make an experiment and the grid of its sites; `count` nodes instead of all."""

    def make(count=None, **changes):
        experiment = small(runtime__out=str(tmp_path / "runs"), **changes)
        run_config = {"preset": preset(experiment, tmp_path)}
        wanted = experiment.split.num_clients if count is None else count
        return experiment, MemoryGrid(sites(run_config, wanted))

    return make


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The results of the same experiment without Flower."""
    return results(loopback(small(runtime__out=str(tmp_path_factory.mktemp("loopback")))))


@pytest.fixture
def apart(monkeypatch, tmp_path):
    """Sites on other machines than the server's: models must travel."""
    monkeypatch.setenv("FEDAPP_SITES", str(tmp_path / "elsewhere"))


def travelled(grid):
    """Models in all messages to the sites."""
    messages = (message for push in grid.pushes for message in push)
    return sum(len(flower_records.read_request(message.content)[2]) for message in messages)


def request_of(message):
    return flower_records.read_request(message.content)[1]


def reply_with(message, answer, payloads=None):
    return Message(flower_records.write_answer(Incoming(answer, payloads or {})), reply_to=message)


def disturb(grid, number, mischief, site=2):
    """Let site 2 pass its reply through `mischief(message, reply)` in one round."""
    honest = grid.nodes[100 + site]

    def disturbed(message):
        request, reply = request_of(message), honest(message)
        due = isinstance(request, Task) and request.round == number
        return mischief(message, reply) if due else reply

    grid.nodes[100 + site] = disturbed


def skipped(folder):
    """The sites that each round skipped."""
    return [list(row["skipped"]) for row in rows(folder.path)]


# --- honest sites ---------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [list, lambda replies: replies[::-1], lambda r: r[1::2] + r[::2]])
def test_the_run_is_the_loopback_run_whatever_the_order_of_replies(
    federation, whole, order, apart, capsys
):
    experiment, grid = federation()
    grid.order = order
    summary, folder = serve(experiment, grid)
    assert results(folder.path) == whole
    assert summary["models_sent"] == travelled(grid)
    assert "left out" not in capsys.readouterr().out


def test_sites_beside_the_pool_give_the_same_run_and_no_model_travels(federation, whole):
    experiment, grid = federation()
    replies = []
    grid.order = lambda pulled: replies.extend(pulled) or pulled
    _, folder = serve(experiment, grid)
    assert results(folder.path) == whole  # what the ledger counts is the method's, not the place's
    assert travelled(grid) == 0
    assert all(not flower_records.read_answer(reply.content).payloads for reply in replies)
    assert not list(folder.sites_root.rglob("*/models/*/*.safetensors"))


def test_a_site_that_does_not_know_the_pools_key_is_sent_everything(federation, monkeypatch):
    experiment, grid = federation()
    monkeypatch.setattr("client_app.node.read_key", lambda root: "0" * 32)
    summary, _ = serve(experiment, grid)
    assert summary["models_sent"] == travelled(grid) > 0


def test_a_site_that_names_a_wrong_key_is_no_neighbour(federation, apart, monkeypatch):
    experiment, grid = federation()
    real = SiteFacts.__init__
    monkeypatch.setattr(
        SiteFacts, "__init__", lambda self, *a, **k: real(self, *a, **(k | {"pool_key": "0" * 32}))
    )
    summary, _ = serve(experiment, grid)
    assert summary["models_sent"] == travelled(grid) > 0


def test_a_neighbour_that_names_a_model_it_did_not_lay_into_the_pool_is_skipped(federation):
    experiment, grid = federation(rounds__num_rounds=2, rounds__sample_rate=1.0)
    disturb(grid, 1, changed(model="0" * 64, held=("0" * 64,)))
    _, folder = serve(experiment, grid)
    assert skipped(folder) == [[], ["2"], []]
    assert "its new model is not there" in rows(folder.path)[1]["skipped"]["2"]


@pytest.mark.parametrize("limit", [1, 4])
def test_no_more_models_are_under_way_than_there_is_room_for(
    federation, whole, apart, monkeypatch, limit
):
    experiment, grid = federation()
    monkeypatch.setattr(carrier.GridCarrier, "_models_at_once", lambda self, outbox: limit)
    _, folder = serve(experiment, grid)
    assert results(folder.path) == whole
    for push in grid.pushes[1:]:
        models = {d for message in push for d in flower_records.read_request(message.content)[2]}
        assert len(push) == 1 or len(models) + len(push) <= limit
    assert len(grid.pushes) > 2 + experiment.rounds.num_rounds


def test_few_messages_are_under_way_to_sites_beside_the_pool(federation, whole, monkeypatch):
    experiment, grid = federation()
    monkeypatch.setattr(node_registry, "MAX_POOL_MESSAGES", 2)
    monkeypatch.setattr(carrier, "MAX_POOL_MESSAGES", 2)
    _, folder = serve(experiment, grid)
    assert results(folder.path) == whole
    assert max(map(len, grid.pushes)) == 2
    assert sum(map(len, grid.pushes[:3])) == 5  # everybody is asked who it is


def test_nodes_that_do_not_say_who_they_are_hold_up_the_others_for_a_while_only(
    federation, monkeypatch
):
    experiment, grid = federation(rounds__hello_s=60.0)
    monkeypatch.setattr(node_registry, "MAX_POOL_MESSAGES", 2)
    monkeypatch.setattr(carrier, "MAX_POOL_MESSAGES", 2)
    silent = [node for node, _ in zip(grid.nodes, range(2), strict=False)]
    grid.nodes |= dict.fromkeys(silent, lambda message: None)
    summary, _ = serve(experiment, grid)
    assert summary["sites"] == 3


def test_room_is_counted_in_the_models_own_size(federation):
    experiment, grid = federation(runtime__in_flight_mib=3)
    _, folder = serve(experiment, grid)
    origin = Origin("x", "0" * 16, "0" * 64)
    run = Assembly(experiment, folder, ModelStore(folder.pool_root), Progress())
    made = carrier.GridCarrier(grid, origin, run)
    digest = run.store.put(bytes(2**20))
    task = Task(0, 1, "train", ModelRef(0, 0, digest))
    assert made._models_at_once([Outgoing(task, b"", (digest, "f" * 64))]) == 3


def test_a_model_that_the_pool_lost_fails_its_site_and_is_not_counted_as_sent(
    federation, apart, monkeypatch
):
    experiment, grid = federation(rounds__num_rounds=2, rounds__sample_rate=1.0)
    lost = []

    def get(self, digest, real=ModelStore.get):
        if lost == [] and self.root.name == "pool":
            lost.append(digest)
            raise StoreError("models/x.safetensors: damaged")
        return real(self, digest)

    monkeypatch.setattr(ModelStore, "get", get)
    summary, folder = serve(experiment, grid)
    [reason] = rows(folder.path)[1]["skipped"].values()
    assert reason.endswith("the server lost a model it needs: models/x.safetensors: damaged")
    assert summary["models_sent"] == travelled(grid)


def test_each_phase_is_one_push_of_timed_typed_messages(federation):
    experiment, grid = federation()
    serve(experiment, grid)
    assert len(grid.pushes) == 1 + 1 + experiment.rounds.num_rounds  # hello, warm-up, rounds
    kinds = [{message.metadata.message_type for message in push} for push in grid.pushes]
    assert kinds == [{"query.hello"}] + [{"train.task"}] * (len(grid.pushes) - 1)
    assert len(grid.pushes[1]) == experiment.split.num_clients
    for number, push in enumerate(grid.pushes):
        # A site that is being started may say who it is after more time than a task may take.
        seconds = experiment.rounds.deadline_s if number else experiment.rounds.hello_s
        assert {message.metadata.ttl for message in push} == {seconds}
    assert experiment.rounds.hello_s > experiment.rounds.deadline_s
    for push in grid.pushes:
        assert len({message.metadata.dst_node_id for message in push}) == len(push)


def test_one_model_goes_to_many_sites_as_the_same_bytes(federation, apart):
    experiment, grid = federation()
    serve(experiment, grid)
    for push in grid.pushes:
        sent = {}
        for message in push:
            for digest, blob in flower_records.read_request(message.content)[2].items():
                assert sent.setdefault(digest, blob) is blob


# --- one bad site ---------------------------------------------------------------------------------


def error(code, reason):
    return lambda message, reply: Message(Error(code, reason), reply_to=message)


def changed(**changes):
    def mischief(message, reply):
        incoming = flower_records.read_answer(reply.content)
        return reply_with(message, replace(incoming.answer, **changes), incoming.payloads)

    return mischief


def made_by_flower(message, reply):
    """An error that the SuperLink makes up for a node: its sender is the SuperLink."""
    made = Message(Error(3, "expired"), reply_to=message)
    made.metadata.__dict__["_src_node_id"] = 1
    return made


def heads(message_head):
    records = RecordDict({"heads": ConfigRecord({"message": message_head})})
    return lambda message, reply: Message(records, reply_to=message)


NO_ANSWER = {
    "unknown error": (error(0, "ray\n  died"), r"^Flower error 0: ray died$"),
    "raised": (error(2, "boom"), r"^Flower error 2: boom$"),
    "expired": (error(3, "too late"), r"^Flower error 3: too late$"),
    "node gone": (error(5, "gone"), r"^Flower error 5: gone$"),
    "crashed": (error(8, None), r"^Flower error 8: None$"),
    "long error": (error(8, "x" * 10_000), r"^Flower error 8: x{400}$"),
    "no answer in it": (heads(b"{"), r"^unreadable answer: message head is not JSON"),
    "a request in it": (
        heads(flower_records.encode(Hello())),
        r"^unreadable answer: an answer was due, Hello came",
    ),
}


@pytest.mark.parametrize("name", NO_ANSWER)
def test_what_is_no_answer_is_a_refusal_with_the_reason(name):
    reply, reason = NO_ANSWER[name]
    asked = Message(RecordDict(), dst_node_id=102, message_type="train.task", ttl=60.0)
    [incoming] = transport.parsed(reply(asked, None))
    assert isinstance(incoming.answer, Refusal)
    assert re.search(reason, incoming.answer.reason)


BAD = {
    "silent": (lambda message, reply: None, r"no answer within 60 s"),
    "Flower speaks for it": (made_by_flower, r"^the site refused: Flower error 3: expired$"),
    "nothing in it": (
        lambda message, reply: Message(RecordDict(), reply_to=message),
        r"unreadable answer: message holds records \[\]",
    ),
    "another site": (changed(site=1), r"answered as site 1, round 1$"),
}
"""How the engine meets other wrong answers: `tests/server/test_engine.py`."""


@pytest.mark.parametrize("name", BAD)
def test_one_bad_site_is_skipped_named_and_counted_and_harms_no_other(federation, name, capsys):
    mischief, reason = BAD[name]
    experiment, grid = federation(rounds__num_rounds=2, rounds__sample_rate=1.0)
    disturb(grid, 1, mischief)
    summary, folder = serve(experiment, grid)
    every = rows(folder.path)
    assert list(every[1]["skipped"]) == ["2"]
    assert re.search(reason, every[1]["skipped"]["2"]), every[1]["skipped"]
    assert every[0]["skipped"] == every[2]["skipped"] == {}
    assert every[1]["trained"] == 4
    assert re.search(r"^site 2 skipped in round 1: ", capsys.readouterr().out, re.M)
    assert summary["mean_test_accuracy"]["final"] is not None


@pytest.mark.parametrize("says_none", [False, True])
def test_a_message_that_flower_does_not_take_costs_only_its_own_site(federation, says_none):
    experiment, grid = federation(rounds__num_rounds=2, rounds__sample_rate=1.0)
    grid.says_none = says_none

    def leave(message, reply):
        grid.gone.add(102)
        return reply

    disturb(grid, 0, leave)
    _, folder = serve(experiment, grid)
    assert skipped(folder) == [[], ["2"], ["2"]]
    assert "not sent; is the node gone?" in rows(folder.path)[1]["skipped"]["2"]


def test_a_reply_that_comes_twice_counts_once(federation, whole):
    experiment, grid = federation()
    grid.order = lambda replies: replies + replies
    _, folder = serve(experiment, grid)
    assert results(folder.path) == whole


def test_polling_slows_down_and_ends_at_the_deadline(federation, clock):
    experiment, grid = federation(rounds__num_rounds=1, rounds__sample_rate=1.0)
    disturb(grid, 1, lambda message, reply: None)
    began = clock.seconds
    serve(experiment, grid)
    # Less what the engine's own, real clock took off the deadline before the messages went.
    assert 30 < clock.seconds - began <= experiment.rounds.deadline_s
    assert max(clock.sleeps) <= transport.LAST_POLL_S
    assert grid.pulls < 3 * 5 + 60 / transport.LAST_POLL_S + 10


def test_an_answer_after_the_deadline_is_not_waited_for_and_harms_no_later_round(federation):
    experiment, grid = federation(rounds__num_rounds=2, rounds__sample_rate=1.0)
    late = {}

    def dawdle(message, reply):
        late[message.metadata.message_id] = reply

    disturb(grid, 1, dawdle)
    wait = grid.push_messages

    def push(messages):
        request = request_of(messages[0])
        if isinstance(request, Task) and request.round == 2:
            grid._waiting |= late  # by now it has arrived
        return wait(messages)

    grid.push_messages = push
    _, folder = serve(experiment, grid)
    assert skipped(folder) == [[], ["2"], []]
    assert len(late) == 1


def test_a_node_that_confirms_before_all_was_sent_costs_itself_alone_the_round(federation, caplog):
    experiment, grid = federation()
    disturb(grid, 1, lambda message, reply: grid.unsendable.clear() or reply, site=3)
    disturb(grid, 0, lambda message, reply: grid.unsendable.update(early) or reply, site=3)
    early = {102: ObjectPushError("0" * 64, 1, "session")}
    _, folder = serve(experiment, grid)
    by_round = [row["skipped"] for row in rows(folder.path)]
    assert [set(skipped) for skipped in by_round[:2]] == [set(), {"2"}]
    assert by_round[1]["2"] == f"the site refused: {transport.NOT_SENT}"
    assert "node 102 confirmed too early" in caplog.text


def test_a_node_whose_pieces_make_up_no_message_costs_itself_alone_the_round(federation):
    fault = DecodeError("no")
    experiment, grid = federation(rounds__sample_rate=1.0)

    def strange(message, reply):
        grid.unreadable[102] = fault
        return reply

    disturb(grid, 1, strange)
    _, folder = serve(experiment, grid)
    by_round = [row["skipped"] for row in rows(folder.path)]
    assert [set(skipped) for skipped in by_round] == [set()] + [{"2"}] * (len(by_round) - 1)
    assert f"pieces make up no message: {fault!r}"[:60] in by_round[1]["2"]


def test_a_superlink_that_is_gone_ends_the_run(federation):
    experiment, grid = federation()
    grid.unreadable[102] = httpx.ConnectError("connection refused")
    with pytest.raises(httpx.ConnectError):
        serve(experiment, grid)


def test_too_many_bad_sites_end_the_run_with_the_reason(federation):
    experiment, grid = federation()
    for site in range(4):
        disturb(grid, 0, error(0, "actor died"), site)
    with pytest.raises(RunError, match=r"round 0: 1 of 5 sites answered.*Flower error 0: actor di"):
        serve(experiment, grid)


# --- who takes part -------------------------------------------------------------------------------


def test_fewer_nodes_than_sites_are_waited_for_and_then_used(federation, capsys, clock):
    experiment, grid = federation(count=3)
    summary, _ = serve(experiment, grid)
    assert summary["sites"] == 3
    assert "3 of 5 sites are here and will be used" in capsys.readouterr().out
    assert sum(clock.sleeps) == pytest.approx(experiment.rounds.join_wait_s, abs=0.1)


def test_nodes_that_come_while_the_server_waits_take_part(federation, monkeypatch):
    experiment, grid = federation()
    later = {105 - 1: grid.nodes.pop(104)}

    def join():
        if len(grid.nodes) == 4 and transport.time.monotonic() > 1003:
            grid.nodes |= later
        return list(grid.nodes)

    monkeypatch.setattr(grid, "get_node_ids", join)
    assert serve(experiment, grid)[0]["sites"] == 5


def test_without_nodes_the_run_ends_with_the_remedy(federation):
    experiment, grid = federation(count=0)
    with pytest.raises(RunError, match=r"no node within rounds.join_wait_s = 10 s; start SuperNod"):
        serve(experiment, grid)


def test_nodes_that_err_or_talk_nonsense_at_the_start_are_left_out(federation, capsys):
    experiment, grid = federation()
    grid.nodes[101] = lambda message: made_by_flower(message, None)
    grid.nodes[103] = lambda message: reply_with(message, Missing(3, 0, ()))
    summary, _ = serve(experiment, grid)
    assert summary["sites"] == 3
    out = capsys.readouterr().out
    assert "node 101 cannot take part: Flower error 3: expired" in out
    assert "node 103 cannot take part: answered with Missing when asked who it is" in out


def test_where_no_node_can_take_part_the_reason_is_said_once(federation, capsys, tmp_path):
    experiment, grid = federation()
    other = preset(replace(experiment, name="other", seed=9), tmp_path)
    grid.nodes = sites({"preset": other}, 5)
    with pytest.raises(RunError, match="none of 5 nodes can take part: this site's settings diff"):
        serve(experiment, grid)
    assert capsys.readouterr().out.count("cannot take part") == 1


@pytest.mark.parametrize("anew", [False, True])
def test_who_refuses_a_task_for_good_is_asked_again_only_when_it_signs_on_anew(
    federation, monkeypatch, anew
):
    experiment, grid = federation(rounds__num_rounds=2)
    real, ids, asked = grid.nodes[101], grid.get_node_ids, []
    info = NodeInfo(node_id=101)

    def spent(message):
        _, request, _ = flower_records.read_request(message.content)
        if not isinstance(request, Task) or request.round == 0:
            return real(message)
        asked.append(request.round)
        return reply_with(message, Refusal(-1, 0, "this site's terms (epsilon_at_most)", True))

    def look():
        info.last_activated_at = f"round {len(asked)}" if anew else "the first day"
        return ids()

    monkeypatch.setattr(grid, "get_nodes", lambda: [info])
    monkeypatch.setattr(grid, "get_node_ids", look)
    grid.nodes[101] = spent
    _, folder = serve(experiment, grid)
    assert asked == ([1, 2] if anew else [1])
    skipped = [row["skipped"].get("1", "") for row in folder.metrics()]
    assert [why.count("epsilon_at_most") for why in skipped] == [0, 1, 1]
    assert ("not asked again" in skipped[2]) is not anew


def test_nodes_with_registered_names_are_all_named(federation, capsys, tmp_path, monkeypatch):
    experiment, grid = federation()
    other = preset(replace(experiment, name="other", seed=9), tmp_path)
    grid.nodes = sites({"preset": other}, 5)
    names = {100: "north", 102: "west"}
    infos = [NodeInfo(node_id=n, name=names.get(n, "")) for n in grid.nodes]
    monkeypatch.setattr(grid, "get_nodes", lambda: infos)
    with pytest.raises(RunError):
        serve(experiment, grid)
    lines = [ln for ln in capsys.readouterr().out.splitlines() if "cannot take part" in ln]
    named = [line.partition(" cannot")[0] for line in lines]  # of the unnamed, the first
    assert named == ["site 'north' (node 100)", "node 101", "site 'west' (node 102)"]


def test_where_all_nodes_are_silent_the_run_ends(federation):
    experiment, grid = federation()
    grid.nodes = dict.fromkeys(grid.nodes, lambda message: None)
    with pytest.raises(RunError, match="no site answered"):
        serve(experiment, grid)
