"""FedSiam: which other method each becomes at its ends, its curves by hand, and what travels."""

import csv
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load

from fedapp.core.errors import ProtocolError
from fedapp.learn.networks.mlp import MLPSettings
from fedapp.learn.networks.parts import layers_of
from fedapp.learn.params import digest_of, to_bytes
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.base import Arrived
from fedapp.methods.two_networks._siamese import TwoNetworks
from fedapp.methods.two_networks._target import divergences
from fedapp.methods.two_networks.fedsiam_d import FedSiamD, boundary, layers_to_send
from fedapp.methods.two_networks.fedsiam_mt import FedSiamMt
from fedapp.methods.two_networks.fedsiam_pi import FedSiamPi
from fedapp.protocol.messages import (
    MODEL,
    SERVER_SITE,
    ModelRef,
    PartSent,
    Reply,
    SiteFacts,
    Task,
)
from tests.methods.conformance import (
    OTHER,
    SERVER,
    START,
    assert_close,
    assert_same,
    context,
    data_of,
    mean_by_hand,
    named,
    play,
    toy,
)

NO_WARM_UP = {"training__warmup_epochs": 0}


ROUNDS = {**NO_WARM_UP, "rounds__num_rounds": 4}


def sent(exchange):
    """What came for each role, as tensors."""
    uploads = exchange.reply.uploads(exchange.task.own.digest)
    return {role: load(exchange.incoming.payloads[d]) for role, d in uploads.items()}


def named_by(played, exchange, role):
    """The server's network of this role that a task named."""
    return played.server(replace(exchange, task=_as_server(exchange.task, role)))


def _as_server(task, role):
    return replace(task, models={"server": task.models[role]})


# --- the ends -------------------------------------------------------------------------------------


@named([FedSiamPi(consistency_weight=0.0), FedSiamMt(consistency_weight=0.0)])
def test_without_consistency_it_is_fedavg_on_the_labelled_images_bit_for_bit(tmp_path, method):
    plain = play(toy(FedAvg(), tmp_path, name="fedavg"))
    mine = play(toy(method, tmp_path, name="mine"))
    models = {key: value[1] for key, value in mine.records()["pool"].items() if " " not in key}
    assert models == {key: value[1] for key, value in plain.records()["pool"].items()}


def test_up_to_the_first_curve_round_the_target_is_the_online_network(tmp_path):
    """alpha = 0: equal after every step; so it differs by 0, one content travels for both."""
    played = play(toy(FedSiamD(), tmp_path, **NO_WARM_UP))
    for exchange in played.of(1, "train"):
        assert exchange.reply.contents["online"] == exchange.reply.model
        assert {value.item() for value in sent(exchange)["divergence"].values()} == {0.0}
        assert len(exchange.incoming.payloads) == 2  # the model, and the numbers
    for exchange in played.of(2, "evaluate"):
        [target], [online] = exchange.task.models["server"], exchange.task.models["online"]
        assert target.digest == online.digest
        results = exchange.reply.evaluations
        assert results["test_online"] == results["test_common"] == results["test"]


def test_up_to_then_it_is_pi_bit_for_bit_where_no_layer_has_statistics(tmp_path):
    """The target has the online network's weights, so it gives the same network's second answer."""
    changes = {**NO_WARM_UP, "rounds__num_rounds": 3, "model": MLPSettings()}
    pi = play(toy(FedSiamPi(), tmp_path, name="pi", **changes))
    d = play(toy(FedSiamD(), tmp_path, name="d", **changes))
    found = d.records()["pool"]
    assert {site: found[site][1] for site in ("-2", "0", "1", "2")} == {
        site: record[1] for site, record in pi.records()["pool"].items() if site != "-1"
    }


def test_where_all_layers_are_asked_both_networks_come_whole(tmp_path):
    """A share of 1: as of FedSiam-MT."""
    linear = FedSiamD(calm_rounds=1, saved_share=0.0)
    assert linear.share(2, 4) == 1.0
    played = play(toy(linear, tmp_path, **ROUNDS))
    for exchange in played.of(2, "train"):
        assert (
            not exchange.reply.parts and exchange.reply.contents["online"] != exchange.reply.model
        )
        assert sent(exchange)["online"].keys() == played.w_0().keys()


def at_a_share_of_one(monkeypatch):
    """FedSiam-D that asks for all layers in every round, the first too."""
    monkeypatch.setattr(FedSiamD, "share", lambda self, number, last: 1.0)
    monkeypatch.setattr(FedSiamD, "decay_in", TwoNetworks.decay_in)
    return FedSiamD()


def test_where_all_layers_are_always_asked_it_is_the_mean_teacher_bit_for_bit(
    tmp_path, monkeypatch
):
    """tau = 1 is MT: both networks of the server and of every site, and all that is measured."""
    mt = play(toy(FedSiamMt(), tmp_path, name="mt", **ROUNDS))
    d = play(toy(at_a_share_of_one(monkeypatch), tmp_path, name="d", **ROUNDS))
    wanted, found = mt.records()["pool"], d.records()["pool"]
    networks = [key for key in wanted if not key.endswith("divergence")]
    assert {"-2", "-2 online", "0", "0 online", "2 online"} <= set(networks)
    assert {key: found[key] for key in networks} == {key: wanted[key] for key in networks}
    assert d.summary["mean_test_accuracy"] == mt.summary["mean_test_accuracy"]
    assert d.summary["sent_online_share"] == 1.0


def test_no_layer_in_any_round_gives_two_equal_averages(tmp_path):
    none = FedSiamD(calm_rounds=1, saved_share=1.0)
    assert {none.share(t, 4) for t in range(1, 5)} == {0.0}
    played = play(toy(none, tmp_path, **ROUNDS))
    pool = played.records()["pool"]
    assert pool["-2"][1] == pool["-2 online"][1]
    assert played.summary["planned_online_share"] == played.summary["sent_online_share"] == 0.0
    assert played.summary["bytes_spared"] > 0.45 * played.summary["bytes_up"]


# --- curves and boundary --------------------------------------------------------------------------


def test_the_curves_by_hand():
    linear = FedSiamD(saved_share=0.5, calm_rounds=3)
    shares = [linear.share(t, 50) for t in range(1, 51)]
    assert shares[:4] == [0, 0, 0, 1.0] and shares[-1] == 0.0
    assert shares[5] == pytest.approx(50 * 44 / 47**2)
    assert all(a >= b for a, b in pairwise(shares[3:]))
    assert np.mean(shares) == pytest.approx(0.4882, abs=5e-5)
    assert linear.costs(100, 0.1, 50)["planned_online_share"] == pytest.approx(0.4882, abs=5e-5)
    rectangle = FedSiamD(curve="rectangle", calm_rounds=10, end_round=40)
    shares = [rectangle.share(t, 50) for t in range(1, 51)]
    assert {round(s, 4) for s in shares[10:39]} == {0.8333}
    assert set(shares[:10] + shares[39:]) == {0.0}
    assert np.mean(shares) == pytest.approx(0.4833, abs=5e-5)


def test_a_rectangle_ends_after_it_begins():
    with pytest.raises(ValidationError, match="end_round must be above calm_rounds"):
        FedSiamD(curve="rectangle", calm_rounds=10, end_round=10)


VALUES = [n / 10 for n in range(1, 11)]
OWN = ModelRef(0, 1, "a" * 64)


def task(tau, least, action="train"):
    return Task(0, 5, action, OWN, numbers={"share": tau, "boundary": least})


@pytest.mark.parametrize(("tau", "count"), [(0.3, 3), (0.0, 0), (1.0, 10), (0.5, 5)])
def test_the_boundary_by_hand(tau, count):
    least = boundary([VALUES[:4], VALUES[4:]], tau)
    assert tau != 0.3 or least == pytest.approx(0.73)
    names = {f"layer{n}": value for n, value in enumerate(VALUES)}
    assert len(layers_to_send(task(tau, least).numbers, names)) == count


def test_of_no_values_the_boundary_asks_for_all():
    assert boundary([], 0.4) == 0.0
    assert layers_to_send(task(0.4, 0.0).numbers, {"a": 1e-9, "b": 2.0}) == ["a", "b"]


def test_a_layer_that_does_not_differ_is_not_sent():
    assert layers_to_send(task(1.0, 0.0).numbers, {"a": 0.0, "b": 2.0}) == ["b"]


def test_the_boundary_is_of_the_last_rounds_alone(tmp_path):
    """2 rounds of 3 sites and their layers; the boundary told in a round is of those before it."""
    method = FedSiamD(calm_rounds=2, saved_share=0.5)
    played = play(toy(method, tmp_path, **NO_WARM_UP, rounds__num_rounds=6))
    state = played.engine.folder.load_checkpoint()["state"]["server"]
    layers = len(layers_of(played.w_0()))
    assert [len(values) for values in state["rounds"]] == [3 * layers] * 2
    said = {
        number: [
            v.item() for e in played.of(number, "train") for v in sent(e)["divergence"].values()
        ]
        for number in range(1, 7)
    }
    assert [sorted(values) for values in state["rounds"]] == [sorted(said[5]), sorted(said[6])]
    for number in (3, 4, 5):
        numbers = played.of(number, "train")[0].task.numbers
        tau = method.share(number, 6)
        assert numbers["share"] == tau
        assert numbers["boundary"] == boundary([said[number - 2], said[number - 1]], tau)


# --- what travels ---------------------------------------------------------------------------------


def test_each_network_is_averaged_for_itself(tmp_path):
    played = play(toy(FedSiamMt(), tmp_path, **ROUNDS))
    for number in (1, 2, 3):
        trained = played.of(number, "train")
        counts = [21, 23, 5]
        for role, name in ((MODEL, "server"), ("online", "online")):
            mean = mean_by_hand([sent(e)[role] for e in trained], counts)
            measured = played.of(number, "evaluate")[0]
            assert_close(named_by(played, measured, name), mean)
    both = sent(played.of(2, "train")[0])
    assert any(not torch.equal(both[MODEL][n], both["online"][n]) for n in both[MODEL])


def test_the_missing_layers_are_the_sites_own_target_layers(tmp_path):
    method = FedSiamD(calm_rounds=1, saved_share=0.7)
    played = play(toy(method, tmp_path, **ROUNDS))
    partly = 0
    for number in (2, 3):
        whole = []
        for exchange in played.of(number, "train"):
            came = sent(exchange)
            online = came.get("online", {})
            layers = layers_of(came[MODEL])
            numbers = {layer: v.item() for layer, v in came["divergence"].items()}
            chosen = {
                name for a in layers_to_send(exchange.task.numbers, numbers) for name in layers[a]
            }
            if exchange.reply.parts:
                assert online.keys() == chosen and 0 < len(chosen) < len(came[MODEL])
                partly += 1
            whole.append({**came[MODEL], **online})
            assert digest_of(to_bytes(whole[-1])) == exchange.reply.contents["online"]
        mean = mean_by_hand(whole, [21, 23, 5])
        assert_close(named_by(played, played.of(number, "evaluate")[0], "online"), mean)
    assert partly >= 2


def traffic(played):
    with (played.folder.path / "traffic.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_ledger_names_role_and_layers_and_what_was_spared(tmp_path):
    played = play(toy(FedSiamD(calm_rounds=1, saved_share=0.7), tmp_path, **ROUNDS))
    rows = {
        (int(r["round"]), int(r["site"])): r
        for r in traffic(played)
        if (r["kind"], r["direction"]) == ("online", "up")
    }
    whole = len(to_bytes(played.w_0()))
    spared = 0
    for number in range(1, 5):
        for exchange in played.of(number, "train"):
            came, row = sent(exchange), rows[number, exchange.task.site]
            if exchange.reply.contents["online"] == exchange.reply.model:
                assert (row["models"], row["bytes"], row["layers"]) == ("0", "0", "")
                spared += whole
            elif part := exchange.reply.parts.get("online"):
                blob = exchange.incoming.payloads[part.digest]
                assert row["bytes"] == str(len(blob))
                assert row["layers"].split() == list(layers_of(came["online"]))
                spared += whole - len(blob)
            else:
                assert (row["bytes"], row["layers"]) == (str(whole), "")
    assert played.summary["bytes_spared"] == spared > 0
    sizes = {name: tensor.numel() for name, tensor in played.w_0().items()}
    shares = [
        sum(sizes[n] for n in sent(e)["online"] if e.reply.contents["online"] != e.reply.model)
        / sum(sizes.values())
        for number in range(1, 5)
        for e in played.of(number, "train")
    ]
    assert 0 < np.mean(shares) < 1
    assert played.summary["sent_online_share"] == pytest.approx(np.mean(shares))


@named([FedSiamMt(), FedSiamD(calm_rounds=1)])
def test_in_half_precision_parts_fit_their_wholes(tmp_path, method):
    played = play(toy(method, tmp_path, **ROUNDS, transport__precision="float16"))
    assert all(not row["skipped"] for row in played.rows())


def test_the_local_epochs_of_a_site_are_counted_on(tmp_path):
    played = play(toy(FedSiamPi(), tmp_path, **NO_WARM_UP, training__local_epochs=3))
    for number in (1, 2):
        for exchange in played.of(number, "train"):
            [count] = load(exchange.private).values()
            assert int(count) == 3 * number


# --- a site ---------------------------------------------------------------------------------------

TRAIN = Task(
    0, 5, "train", ModelRef(0, 1, "b" * 64),
    {"server": (SERVER,), "online": (replace(SERVER, role="online"),)},
    numbers={"share": 1.0, "boundary": 0.0},
)  # fmt: skip


def visit(method, task=TRAIN, labelled=6, unlabelled=6, epochs=0, **training):
    """Do a task at a site after so many local epochs; the target is START, the online one OTHER."""
    site = context(data_of(labelled, unlabelled), START, **training)
    site = replace(
        site,
        contents=lambda ref: OTHER if ref.role == "online" else START,
        memory={"epochs": torch.tensor(epochs)},
    )
    return method.site_round(task, site)


WEIGHTS = ("stem.conv.weight", "head.weight", "head.bias")


@pytest.mark.parametrize(("method", "epochs", "alpha"), [
    (FedSiamMt(), 0, 1 / 2), (FedSiamMt(), 5, 6 / 7), (FedSiamMt(largest_decay=0.25), 5, 0.25),
    (FedSiamD(calm_rounds=4), 5, 6 / 7), (FedSiamD(calm_rounds=5), 5, 0.0),
])  # fmt: skip
def test_the_target_follows_by_hand_behind_an_online_network_that_hardly_moves(
    method, epochs, alpha
):
    """Three steps in local epoch t, at next to no learning rate: alpha^3 of what it was is left."""
    report = visit(method, epochs=epochs, batch_size=4, learning_rate=1e-12)
    left = alpha**3
    for name in WEIGHTS:
        torch.testing.assert_close(report.contents["online"][name], OTHER[name])
        wanted = left * START[name] + (1 - left) * OTHER[name]
        torch.testing.assert_close(report.params[name], wanted)
    assert int(report.memory["epochs"]) == epochs + 1


def test_the_papers_norm_is_the_mean_of_squares_times_the_classes():
    """Of three classes; the other distance is another, and views differ so that it matters."""
    found = [
        visit(method, epochs=10, augment="weak").params["head.weight"]
        for method in (
            FedSiamPi(consistency="squared_norm"),
            FedSiamPi(consistency="mse", consistency_weight=3.0),
            FedSiamPi(consistency="mse"),
            FedSiamPi(consistency="kl"),
        )
    ]
    torch.testing.assert_close(found[0], found[1])
    assert not torch.allclose(found[1], found[2]) and not torch.allclose(found[2], found[3])


@pytest.mark.parametrize(("epochs", "beta"), [
    (0, 0.0174224), (4, 0.2865048), (9, 1.0), (50, 1.0),
])  # fmt: skip
def test_a_visits_loss_by_hand_as_consistency_rises_with_the_local_epochs(epochs, beta):
    """beta = exp(-5 (1 - t / 10)^2): of .9^2 in the first, .5^2 in the fifth; 1 from the tenth."""
    report = visit(FedSiamMt(consistency="squared_norm"), epochs=epochs)
    site = context(data_of(6, 6), START)
    x = site.normalise(torch.cat([site.data.labelled, site.data.unlabelled]))
    site.model.train()
    p = []
    for params in (START, OTHER):
        site.model.load_state_dict(params)
        p.append(torch.softmax(site.model(x), 1).detach())
    known = -p[1][torch.arange(6), site.data.labels].log().sum() / 12
    apart = (p[0] - p[1]).square().sum(1).mean()
    assert apart > 0.1 * known  # else any beta would do
    assert report.metrics["loss"] == pytest.approx((known + beta * apart).item(), rel=1e-4)


def test_both_passes_have_views_of_their_own():
    seen = []
    site = context(data_of(4, 4), START, augment="weak")
    site.model.register_forward_pre_hook(lambda _, given: seen.append(given[0].clone()))
    FedSiamPi().site_round(TRAIN, replace(site, memory={"epochs": torch.tensor(0)}))
    assert len(seen) == 2 and seen[0].shape == seen[1].shape
    assert not torch.equal(seen[0], seen[1])


@pytest.mark.parametrize(("method", "passes"), [(FedSiamPi(), 2), (FedSiamMt(), 1)])
def test_a_pass_has_each_labelled_image_as_often_as_is_said(method, passes):
    """Of 4 labelled and 8 other images 3 or 5 batches of 4; Pi's network sees each twice."""
    for repeat, steps in ((1, 3), (3, 5)):
        report = visit(replace(method, labelled_repeat=repeat), TRAIN, 4, 8, batch_size=4)
        online = report.contents.get("online", report.params)
        start = OTHER if report.contents else START
        name = "stem.norm.num_batches_tracked"
        assert int(online[name] - start[name]) == steps * passes


@named([FedSiamPi(), FedSiamMt()])
def test_the_server_minimises_the_cross_entropy_alone(method):
    """Eq. 8: its one network moves as FedAvg's on the same images does."""
    models = {**TRAIN.models, "server": TRAIN.models["online"]}
    found = visit(method, replace(TRAIN, site=SERVER_SITE, models=models), 6, 0, epochs=10)
    plain = FedAvg().site_round(TRAIN, context(data_of(6), OTHER))
    assert_close(found.contents.get("online", found.params), plain.params)


FACTS = SiteFacts(0, (1, 8, 8), ("a", "b"), 6, 54, 0, 10, "0" * 64)
REPLY = Reply(0, 5, "b" * 64, learned=True)


def of_server(**numbers):
    return replace(TRAIN, site=SERVER_SITE, numbers={**TRAIN.numbers, **numbers})


@named([FedSiamMt(), FedSiamD(calm_rounds=1)])
def test_the_servers_target_has_statistics_of_the_images_that_it_follows_along(method):
    """Its weights move with the online network's, so its statistics must not stay behind."""
    name = "stem.norm.num_batches_tracked"
    found = visit(method, of_server(), 6, 0, batch_size=2)
    assert int(found.params[name] - START[name]) == 3
    assert int(found.contents["online"][name] - OTHER[name]) == 3


def test_the_servers_own_online_network_goes_on_whole():
    """There is nothing to spare: none of its layers travels."""
    task = of_server(share=0.5, boundary=1e9)
    found = visit(FedSiamD(calm_rounds=1), task, 6, 0, epochs=10)
    assert found.contents.keys() == {"online"} and not found.sent
    assert not torch.equal(found.contents["online"]["head.weight"], found.params["head.weight"])
    both = {MODEL: Arrived(START, frozenset(START)), "online": Arrived(OTHER, frozenset(OTHER))}
    FedSiamD(calm_rounds=1).check_contents(task, REPLY, both, FACTS)
    calm = visit(FedSiamD(calm_rounds=5), of_server(share=0.0), 6, 0, epochs=10)
    assert_same(calm.contents["online"], calm.params)


# --- what a server must not believe ---------------------------------------------------------------

NAMES = {"conv1.weight": 1.0, "conv1.bias": 2.0, "head.weight": 3.0, "head.bias": 4.0}
TENSORS = {name: torch.tensor([value]) for name, value in NAMES.items()}
TARGETS = {n: t * (1.5 if n.startswith("conv1") else 1.1) for n, t in TENSORS.items()}
FSM = {"conv1": torch.tensor(0.5), "head": torch.tensor(0.1)}
FULL = frozenset(NAMES)
CONV = frozenset({"conv1.weight", "conv1.bias"})


def arrived(online=FULL, fsm=FSM):
    found = {MODEL: Arrived(TARGETS, FULL)}
    if online is not None:
        found["online"] = Arrived(TENSORS, frozenset(online))
    if fsm is not None:
        found["divergence"] = Arrived(fsm, frozenset(fsm))
    return found


@pytest.mark.parametrize(("tau", "least", "came"), [
    (0.5, 0.3, CONV), (0.0, 0.0, ()), (1.0, 9.0, FULL), (0.5, 0.9, ()),
])  # fmt: skip
def test_just_what_was_asked_passes(tau, least, came):
    FedSiamD().check_contents(task(tau, least), REPLY, arrived(came), FACTS)


def far(value):
    """FSM values of which that of the head is this; it would raise the boundary of all others."""
    return {**FSM, "head": torch.tensor(value)}


@pytest.mark.parametrize(("tau", "came", "fsm", "says"), [
    (0.5, FULL, FSM, "sent 2 of 2 layers of its online network (conv1, head); asked were 1"),
    (0.5, (), FSM, "sent 0 of 2 layers of its online network (none); asked were 1 (conv1)"),
    (0.5, {"conv1.weight"}, FSM, "sent 0 of 2 layers of its online network (none); asked were 1"),
    (1.0, CONV, FSM, "sent 1 of 2 layers of its online network (conv1); asked were 2"),
    (0.0, CONV, FSM, "asked were 0 (none)"),
    (0.5, None, FSM, "learned, but sent no online network; run the same version of fedapp"),
    (0.5, CONV, None, "learned, but sent no divergence; run the same version of fedapp"),
    (0.5, FULL, far(-7.0), "divergence of head = -7: must be finite and at least 0; run the same"),
    (0.5, FULL, far(float("nan")), "divergence of head = nan: must be finite"),
    (0.5, FULL, far(float("inf")), "divergence of head = inf: must be finite"),
    (0.5, FULL, far(3e38), "divergence of head = 3e+38, but its two networks differ by 0.1"),
])  # fmt: skip
def test_what_a_site_must_not_send_is_refused_in_one_line(tau, came, fsm, says):
    with pytest.raises(ProtocolError) as caught:
        FedSiamD().check_contents(task(tau, 0.3), REPLY, arrived(came, fsm), FACTS)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_who_did_not_learn_or_learned_one_network_sends_no_divergence():
    FedSiamD().check_contents(task(0.5, 0.3), replace(REPLY, learned=False), {}, FACTS)
    FedSiamD().check_contents(task(0.5, 0.3, "warmup"), REPLY, arrived(FULL, None), FACTS)


def test_a_mean_teacher_sends_both_networks_whole():
    FedSiamMt().check_contents(task(0, 0), REPLY, arrived(FULL, None), FACTS)
    partly = replace(REPLY, parts={"online": PartSent("b" * 64, "c" * 64)})
    with pytest.raises(ProtocolError, match="sent 1 of 2 layers"):
        FedSiamMt().check_contents(task(0, 0), partly, arrived(CONV, None), FACTS)


def test_a_site_that_sends_less_than_asked_is_skipped_and_the_run_goes_on(tmp_path):
    """Site 1 leaves out what it was asked for in round 2; the others are averaged."""

    def tamper(task, incoming):
        if (task.site, task.round, task.action) != (1, 2, "train"):
            return incoming
        reply = incoming.answer
        part = reply.parts.get("online") or PartSent(reply.model, reply.contents["online"])
        payloads = {d: b for d, b in incoming.payloads.items() if d != part.digest}
        contents = {**reply.contents, "online": reply.model}
        return replace(
            incoming, answer=replace(reply, contents=contents, parts={}), payloads=payloads
        )

    method = FedSiamD(calm_rounds=1, saved_share=0.0)
    played = play(toy(method, tmp_path, **ROUNDS), tamper)
    skipped = [row["skipped"] for row in played.rows()]
    assert "sent 0 of" in skipped[2]["1"] and skipped[1] == skipped[3] == {}


def test_the_divergences_are_of_the_two_networks_that_came(tmp_path):
    played = play(toy(FedSiamD(calm_rounds=1, saved_share=0.0), tmp_path, **ROUNDS))
    for exchange in played.of(2, "train"):
        came = sent(exchange)
        weights = {n for n in came[MODEL] if "running" not in n and "tracked" not in n}
        found = divergences(came[MODEL], came["online"], weights)
        assert_same(came["divergence"], found)


def test_equal_facts_weigh_as_many_images_as_there_are():
    assert FedSiamPi().weight(FACTS, REPLY) == 60
    assert FedSiamPi(consistency_weight=0.0).weight(FACTS, REPLY) == 6
