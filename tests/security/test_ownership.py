"""A site cannot write another site's entry of the pool, whatever it says and in whose name."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load, save

from fedapp.core.errors import ProtocolError
from fedapp.core.settings import DataSettings
from fedapp.learn.params import digest_of
from fedapp.methods.um_pfssl.method import SEARCH, UmPfssl
from fedapp.protocol import flower_records
from fedapp.protocol.messages import (
    Incoming,
    ModelRef,
    Refusal,
    Reply,
    SiteFacts,
    Task,
)
from fedapp.server.checks import agreeing_sites
from tests.own import agreed as data_of_their_own
from tests.security.runs import played
from tests.security.test_fuzz_server import Server
from tests.small import small

LIAR, VICTIM = 0, 1


def forged(incoming, **changes):
    """Return the answer with another model, whole and well named, and other claims."""
    [blob] = incoming.payloads.values()
    params = load(blob)
    params["head.bias"] = torch.full_like(params["head.bias"], 666.0)
    blob = save(dict(sorted(params.items())))
    answer = replace(incoming.answer, model=digest_of(blob), held=(digest_of(blob),), **changes)
    return Incoming(answer, {digest_of(blob): blob})


class Site:
    """Stands before a real site and changes what it answers in round 1."""

    def __init__(self, site, lie):
        self._site, self._lie = site, lie

    def __getattr__(self, name):
        return getattr(self._site, name)

    def handle(self, task, payloads):
        incoming = self._site.handle(task, payloads)
        return self._lie(incoming) if task.round == 1 else incoming


def run(root, name, lie=None, twice=False):
    """Two sites, one round; return site -> (version, digest) as the pool ends, and the skipped."""
    experiment = small(
        runtime__out=str(root), runtime__run_name=name, split__num_clients=2, data__subset=200,
        rounds__num_rounds=1, rounds__sample_rate=1.0, rounds__min_reply_share=0.0,
    )  # fmt: skip

    def change(transport):
        if lie:
            transport.sites[LIAR] = Site(transport.sites[LIAR], lie)
        if twice:
            honest = transport.exchange
            transport.exchange = lambda *a: (
                x for k, i in honest(*a) for x in ((k, i), (k, twice(i)))
            )

    engine, folder = played(experiment, change)
    records = {k: (r.version, r.digest) for (k, _), r in engine.pool.contents.items()}
    return records, folder.metrics()[1]["skipped"]


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return run(tmp_path_factory.mktemp("honest"), "honest")[0]


@pytest.mark.parametrize(("lie", "says"), [
    (lambda i: forged(i, site=VICTIM), "answered as site 1, round 1"),
    (lambda i: forged(i, site=VICTIM, round=0), "answered as site 1, round 0"),
    (lambda i: Incoming(Refusal(VICTIM, 1, "I am site 1 and ill")), "site 1 and ill"),
    (lambda i: Incoming(replace(i.answer, site=VICTIM), i.payloads), "answered as site 1"),
])  # fmt: skip
def test_who_speaks_for_another_site_is_refused_and_the_other_keeps_its_entry(
    tmp_path, honest, lie, says
):
    records, skipped = run(tmp_path, "lie", lie)
    assert records[VICTIM] == honest[VICTIM]
    assert list(skipped) == [str(LIAR)] and says in skipped[str(LIAR)]
    assert records[LIAR] != honest[LIAR]  # its own stays as the warm-up left it
    assert records[LIAR][0] == 1


def test_a_forged_model_of_its_own_changes_its_own_entry_alone(tmp_path, honest):
    records, skipped = run(tmp_path, "own", forged)
    assert records[VICTIM] == honest[VICTIM] and records[LIAR] != honest[LIAR]
    assert skipped == {}


def test_a_second_answer_in_a_phase_changes_nothing(tmp_path, honest):
    def again(incoming):
        return forged(incoming) if incoming.payloads else incoming

    assert run(tmp_path, "twice", twice=again)[0] == honest


@pytest.fixture
def server(tmp_path):
    return Server(tmp_path)


@pytest.mark.parametrize("changes", [{"site": 1}, {"site": 1, "round": 4}, {"round": 4}])
def test_through_the_strategy_too(server, changes):
    """`Server.phase` sees to it that the honest site's entry is its own upload."""
    reply = replace(server.reply, **changes)
    answer = Incoming(reply, {reply.model: server.blobs[2]})
    assert server.phase(flower_records.write_answer(answer)) == []
    [reason] = [text for text in server.log if "skipped" in text][-1:]
    assert reason.startswith("site 0 skipped in round 5: the site refused: answered as site")


def test_more_than_one_model_is_no_answer(server):
    payloads = {digest_of(blob): blob for blob in server.blobs[2:4]}
    assert server.phase(flower_records.write_answer(Incoming(server.reply, payloads))) == []
    assert "its new contents did not come along, or more than those came" in server.log[-1]


def test_a_number_that_is_taken_stays_with_the_node_that_has_it(server):
    claims = [server.message(replace(facts, site=VICTIM)) for facts in server.facts]
    assert [f.site for f in server.begin(claims)] == [VICTIM]
    assert server.engine.carrier.sites.nodes == {VICTIM: 100}


OWN = data_of_their_own(sites="north, south, west")


@pytest.mark.parametrize(("changes", "says"), [
    ({"name": "south"}, "its name is 'south', the preset says 'north'"),
    ({"name": ""}, "its name is '', the preset says 'north'"),
    ({"classes": ("nought", "one")}, "its classes is ('nought', 'one'), the preset says"),
    ({"inputs": (3, 8, 8)}, "its input shape is (3, 8, 8), the preset says (1, 8, 8)"),
    ({"inputs": (1, 16, 16)}, "its input shape is (1, 16, 16), the preset says (1, 8, 8)"),
    ({"inputs": (64,)}, "its input shape is (64,), the preset says (1, 8, 8)"),
    ({"site": 3}, "its name is 'north', the preset says None"),
])  # fmt: skip
def test_one_of_two_sites_does_not_decide_what_was_agreed(changes, says):
    """The first of two that differ would win the vote, and so choose the network and the names."""
    honest = SiteFacts(1, (1, 8, 8), OWN.class_names, 1, 1, 1, 1, "0" * 64, name="south")
    liar = replace(honest, site=0, name="north")
    assert agreeing_sites([liar, honest], 4, OWN, print) == [liar, honest]
    said = []
    assert agreeing_sites([replace(liar, **changes), honest], 4, OWN, said.append) == [honest]
    assert says in said[0]


def test_who_cannot_take_part_keeps_no_number_from_who_can(server):
    """It answered first, in the other's place, and then was left out: nobody was left."""
    liar = replace(server.facts[VICTIM], name="north")
    found = server.begin([server.message(liar), server.message(server.facts[VICTIM])])
    assert found == [server.facts[VICTIM]] and server.engine.carrier.sites.nodes == {VICTIM: 101}
    assert any("it has a name, 'north'" in text for text in server.log)


def test_a_site_with_a_name_has_no_place_among_parts_of_a_published_set():
    honest = SiteFacts(1, (1, 8, 8), ("a",), 1, 1, 1, 1, "0" * 64)
    said = []
    named = replace(honest, site=0, name="north")
    assert agreeing_sites([named, honest], 2, DataSettings(), said.append) == [honest]
    assert "it has a name, 'north'" in said[0]


def test_a_site_that_is_to_search_only_cannot_upload():
    own = ModelRef(0, 1, "a" * 64)
    facts = SiteFacts(0, (1, 8, 8), ("a",), 1, 1, 1, 1, "0" * 64)
    task = Task(0, 5, SEARCH, own, {"helpers": (), "newcomers": ()})
    UmPfssl().check_reply(task, Reply(0, 5, own.digest), facts)
    with pytest.raises(ProtocolError, match="asked to search only, it changed its own model"):
        UmPfssl().check_reply(task, Reply(0, 5, "b" * 64), facts)
