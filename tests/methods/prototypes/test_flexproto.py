"""ProtoFSSL and FlexProtoFSSL: what is lent, learned, sent, measured and kept for use."""

import csv
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load

from fedapp.core.errors import ConfigError, ProtocolError
from fedapp.data.sites import Part
from fedapp.learn.networks import build_model, initial_params
from fedapp.learn.params import digest_of, to_bytes
from fedapp.learn.prototypes import Prototypes, class_means, embedded, log_answers
from fedapp.methods.base import Arrived
from fedapp.methods.prototypes._prototypes import Helpers, read, written
from fedapp.methods.prototypes.flexproto import FlexProto
from fedapp.methods.prototypes.protofssl import ProtoFSSL
from fedapp.models.model import load_model
from fedapp.protocol.messages import EVALUATE, ModelRef, Refusal, Reply, Task
from tests.flower.results import loopback
from tests.methods.conformance import (
    PIXELS,
    Deal,
    assert_same,
    context,
    data_of,
    digits_like,
    pixels,
    play,
    site_data,
    toy,
)

DEALS = (Deal(24, 12), Deal(20, 9), Deal(0, 14))
"""The third has no labels."""
OURS = ModelRef(0, 0, "a" * 64)
LENT = tuple(ModelRef(site, 1, f"{site}" * 64, "prototypes") for site in (1, 2))
TRAIN = Task(0, 3, "train", OURS, {"server": (OURS,), "prototypes": LENT})
ALONE = replace(TRAIN, models={"server": (OURS,), "prototypes": ()})
SUPERVISED = {"unlabelled_weight": 0.0}


def given(data=None, **training):
    """A site that can be lent the prototypes of two others; the second lacks a class."""
    data = data or data_of(9, 8)
    stream = torch.Generator().manual_seed(1)
    w_0 = initial_params(PIXELS, (1, 8, 8), 3, 5)
    sent = {}
    for ref in LENT:
        centres = 3 * torch.randn(3, PIXELS.width * 8, generator=stream).abs()
        sent[ref] = written(Prototypes(centres, torch.tensor([True, True, ref.site == 1])))
        sent[ref]["centres"][~sent[ref]["mask"].bool()] = 0
    head = {name: w_0[name] for name in ("head.weight", "head.bias")}
    site = context(data, w_0, head, **training)
    encoder = {name: tensor for name, tensor in w_0.items() if name not in head}
    return replace(site, contents=lambda ref: sent.get(ref, encoder))


def learned(method, site=None, task=TRAIN):
    return method.site_round(task, site or given())


# --- one site -------------------------------------------------------------------------------------


def test_at_cap_0_everything_passes_and_it_is_protofssl_bit_for_bit():
    one = learned(FlexProto(cap=0.0, temperature=0.5, distance="mean_squared"))
    other = learned(ProtoFSSL())
    assert_same(one.params, other.params)
    assert_same(one.contents["prototypes"], other.contents["prototypes"])
    low, high = (learned(FlexProto(cap=cap)).params["stem.conv.weight"] for cap in (0.0, 0.5))
    assert not torch.equal(low, high)


@pytest.mark.parametrize("method", [FlexProto, ProtoFSSL])
def test_at_weight_0_the_unlabelled_images_and_the_helpers_do_not_matter(method):
    with_ = learned(method(**SUPERVISED), given(local_steps=3))
    without = learned(method(**SUPERVISED), given(data_of(9, 0), local_steps=3), ALONE)
    assert_same(with_.params, without.params)


def test_before_its_first_round_the_unlabelled_images_do_not_matter():
    late = FlexProto(unlabelled_from=4)
    assert_same(
        learned(late, given(local_steps=3)).params,
        learned(FlexProto(**SUPERVISED), given(local_steps=3)).params,
    )
    facts = SimpleNamespace(labelled=5, unlabelled=7)
    weights = [late.weight(facts, SimpleNamespace(round=number)) for number in (3, 4)]
    assert weights == [5, 12]


@pytest.mark.parametrize("method", [FlexProto, ProtoFSSL])
def test_at_weight_0_a_site_counts_as_its_labelled_images_do(method):
    facts, reply = SimpleNamespace(labelled=5, unlabelled=7), SimpleNamespace(round=3)
    assert [one.weight(facts, reply) for one in (method(**SUPERVISED), method())] == [5, 12]


@pytest.mark.parametrize("method", [FlexProto, ProtoFSSL])
def test_helpers_that_know_no_class_are_as_none(method):
    site = given(local_steps=3)
    nothing = written(Prototypes(torch.zeros(3, PIXELS.width * 8), torch.zeros(3).bool()))
    inner = site.contents
    masked = replace(site, contents=lambda ref: nothing if ref in LENT else inner(ref))
    assert method().teaching(TRAIN, masked) is None
    assert_same(
        learned(method(), masked).params, learned(method(), given(local_steps=3), ALONE).params
    )


def test_the_warm_up_is_from_labels_alone():
    warm = replace(TRAIN, round=0, action="warmup")
    site = given(warmup_epochs=1)
    assert learned(FlexProto(), site, warm).learned
    assert FlexProto().teaching(warm, site) is None


def test_a_site_sends_the_prototypes_of_all_its_labelled_images_after_training():
    site = given(
        data_of(9, 8).with_parts(labelled=Part(digits_like(4, 1), torch.tensor([0, 0, 2, 2])))
    )
    report = learned(FlexProto(), site)
    site.model.load_state_dict(report.params)
    wanted = class_means(
        embedded(site.model, site.data.labelled, site.normalise), site.data.labels, 3
    )
    sent = report.contents["prototypes"]
    assert torch.equal(sent["centres"], wanted.centres)
    assert sent["mask"].tolist() == [1, 0, 1] and not sent["centres"][1].any()


def test_a_site_without_labels_learns_from_helpers_and_sends_no_prototypes():
    report = learned(FlexProto(cap=0.0), given(data_of(0, 8)))
    assert report.learned and not report.contents
    assert learned(FlexProto(), given(data_of(0, 8)), ALONE).params is None
    assert learned(FlexProto(), given(data_of(0, 0))).params is None


def test_the_head_is_neither_used_nor_sent():
    method, w_0 = FlexProto(proximal=0.1), initial_params(PIXELS, (1, 8, 8), 3, 5)
    report = learned(method, given(weight_decay=0.1))
    assert method.kept_private(given().model) == {"head.weight", "head.bias"}
    for name in ("head.weight", "head.bias"):
        assert torch.equal(report.params[name], w_0[name])


def test_thresholds_follow_from_the_helpers_mean_answer():
    site, method = given(), FlexProto(cap=0.4)
    site.load(OURS)
    teaching = method.teaching(TRAIN, site)
    answers = log_answers(
        embedded(site.model, site.data.unlabelled, site.normalise), teaching.prototypes, "euclidean"
    ).exp()
    top, label = answers.mean(0).max(1)
    sigma = torch.bincount(label[top > 0.4], minlength=3)
    most = max(int(sigma.max()), 8 - int(sigma.sum()))
    assert teaching.thresholds.tolist() == pytest.approx((0.4 * sigma / most).tolist())
    assert sigma.sum() > 0


def test_what_a_helper_lacks_it_has_from_the_others():
    site = given()
    lent = FlexProto().lent(TRAIN, site)
    assert lent.known.tolist() == [[True] * 3, [True, True, False]]
    site.load(OURS)
    teaching = FlexProto().teaching(TRAIN, site)
    assert torch.equal(teaching.prototypes.centres[1, 2], lent.centres[0, 2])
    assert teaching.prototypes.known.all()


def test_the_own_answer_is_by_own_prototypes_and_the_common_one_by_the_helpers():
    """Of a class that the site has no labels of, the helper's that has it; distances by hand."""
    labels = torch.tensor([0, 1, 1, 0, 1])
    site = given(data_of(0, 8).with_parts(labelled=Part(digits_like(5, 2), labels)))
    method, lent = FlexProto(), FlexProto().lent(TRAIN, site).centres
    site.load(OURS)
    known, f = (
        embedded(site.model, images, site.normalise)
        for images in (site.data.labelled, site.data.unlabelled)
    )
    own = [known[labels == k].mean(0) for k in (0, 1)]
    helpers = [lent[:, k].mean(0) for k in (0, 1)]
    for answer, centres in (("tuned", own), ("common", helpers)):
        apart = torch.cdist(f, torch.stack([*centres, lent[0, 2]]))
        with method.answering(answer, TRAIN, site):
            found = site.predicted(site.data.unlabelled)
        torch.testing.assert_close(found, torch.softmax(-apart, 1), atol=1e-4, rtol=1e-4)


def test_the_proximal_term_is_fedprox():
    site = given()
    site.load(OURS)
    assert FlexProto().penalty(site.model) is None
    pull = FlexProto(proximal=0.5).penalty(site.model)
    weights = list(site.model.parameters())
    assert pull(weights).item() == 0
    with torch.no_grad():
        site.model.stem.conv.weight += 2.0
    moved = site.model.stem.conv.weight.numel()
    assert pull(weights).item() == pytest.approx(0.5 / 2 * 4 * moved, rel=1e-5)


def test_a_site_goes_on_with_the_squares_that_it_remembers():
    """The same step from the same weights is shorter where squares are known than where none is."""
    method, w_0 = FlexProto(keep_optimiser=True), initial_params(PIXELS, (1, 8, 8), 3, 5)
    site = given(local_steps=1, optimiser="rmsprop", learning_rate=1e-3)
    site = replace(site, memory=method.memory(site.model, w_0))
    first = learned(method, site)
    assert first.memory.keys() == site.memory.keys()
    assert {name for name in first.memory if "head" in name} == set()
    assert not any(tensor.any() for tensor in site.memory.values())  # nothing changed in place
    again = learned(method, replace(site, memory=first.memory))
    lengths = [
        (one.params["stem.conv.weight"] - w_0["stem.conv.weight"]).norm() for one in (again, first)
    ]
    assert lengths[0] < 0.9 * lengths[1]
    assert FlexProto().memory(site.model, w_0) == {}


def test_keeping_another_optimisers_state_is_one_line():
    with pytest.raises(ConfigError, match=r"set training\.optimiser=rmsprop or keep_optimiser="):
        learned(FlexProto(keep_optimiser=True), given(optimiser="adam"))


def test_sgd_has_no_running_squares_to_keep():
    method, w_0 = ProtoFSSL(keep_optimiser=True), initial_params(PIXELS, (1, 8, 8), 3, 5)
    site = given(optimiser="sgd")
    kept = learned(method, replace(site, memory=method.memory(site.model, w_0)))
    assert kept.memory is None
    assert_same(kept.params, learned(ProtoFSSL(), site).params)


# --- what comes from elsewhere --------------------------------------------------------------------

HONEST = {"centres": torch.tensor([[1.0, 2], [0, 0], [3, 4]]), "mask": torch.tensor([1, 0, 1])}
HONEST["mask"] = HONEST["mask"].to(torch.uint8)
NOTHING = {"centres": [[0.0, 0]] * 3, "mask": [0, 0, 0]}


def checked(content, labelled, before=None):
    """Let the server look at prototypes of a site with so many labelled images."""
    arrived = {"prototypes": Arrived(content, frozenset(content), lambda: before)}
    reply = Reply(0, 3, OURS.digest, learned=True)
    FlexProto().check_contents(TRAIN, reply, arrived, SimpleNamespace(labelled=labelled))


@pytest.mark.parametrize(("change", "labelled", "says"), [
    ({"mask": [1, 2, 1]}, 9, "mask must hold 0 and 1 alone, it holds 2: have the site run"),
    ({"mask": [1, 0, 0]}, 9, "none of class 2, and its numbers are not 0: have the site run"),
    ({"mask": [1, 1, 1]}, 9, "one of class 1, and all its numbers are 0: .*; lower training"),
    ({"centres": [[1e7, 2.0], [0, 0], [3, 4]]}, 9, r"a number beyond 1e\+06 in class 0; lower"),
    ({}, 1, "classes sent: 2, labelled images of the site: 1; .*: have the site run"),
    (NOTHING, 9, "mask has no class; .*: have the site run"),
])  # fmt: skip
def test_prototypes_that_cannot_be_true_are_refused_by_name(change, labelled, says):
    spoilt = HONEST | {n: torch.tensor(v, dtype=HONEST[n].dtype) for n, v in change.items()}
    with pytest.raises(ProtocolError, match=says):
        checked(spoilt, labelled)


def test_a_mask_that_changes_within_a_run_is_refused_by_name():
    other = {"centres": torch.ones(3, 2), "mask": torch.ones(3, dtype=torch.uint8)}
    says = "classes 0, 2, the one before had 0, 1, 2; .*: restore its labels, or start a new run"
    with pytest.raises(ProtocolError, match=says):
        checked(HONEST, 9, before=other)
    checked(HONEST, 9, before={**HONEST, "centres": 2 * HONEST["centres"]})


def test_honest_prototypes_are_read_as_they_were_written():
    checked(HONEST, 2)
    assert_same(written(read(HONEST)), HONEST)


# --- helpers --------------------------------------------------------------------------------------


class Pool:
    """Who has sent how many versions of prototypes."""

    def __init__(self, versions):
        self.versions = versions

    def having(self, role):
        return tuple(sorted(self.versions))

    def latest(self, site, role):
        return SimpleNamespace(version=self.versions[site])


def after(state, number, versions, most=5, rounds=1):
    drawn = SimpleNamespace(permutation=lambda sites: torch.tensor(sites).flip(0).numpy())
    rnd = SimpleNamespace(pool=Pool(versions), number=number, stream=lambda *key: drawn)
    return state.after(rnd, most, rounds)


def test_helpers_are_those_of_the_last_round_in_which_any_sent():
    first = after(Helpers(), 1, {0: 1, 2: 1})
    assert first.helpers == (0, 2)
    second = after(first, 2, {0: 2, 1: 1, 2: 1})
    assert second.helpers == (0, 1)
    assert after(second, 3, {0: 2, 1: 1, 2: 1}).helpers == (0, 1)  # nobody sent
    assert after(first, 2, {0: 2, 1: 1, 2: 1}, rounds=2).helpers == (0, 1, 2)
    assert after(first, 2, {0: 2, 1: 1, 2: 1}, most=2, rounds=2).helpers == (1, 2)


# --- federations ----------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[FlexProto, ProtoFSSL], ids=lambda m: m.name)
def played(request, tmp_path_factory):
    return play(toy(request.param(), tmp_path_factory.mktemp("run"), DEALS))


def test_no_head_travels_and_prototypes_do(played):
    ways = {"up": 0, "down": 0}
    for exchange in played.seen:
        for way, blobs in (("up", exchange.incoming.payloads), ("down", exchange.down)):
            for blob in blobs.values():
                names = load(blob).keys()
                assert names == {"centres", "mask"} or "head.weight" not in names
                ways[way] += names == {"centres", "mask"}
    assert min(ways.values()) > 0


def test_in_a_round_the_prototypes_of_the_round_before_are_lent(played):
    before = {e.task.site: e.reply.contents for e in played.of(1, "train")}
    [wanted] = {tuple(e.task.models["prototypes"]) for e in played.of(2, "train")}
    assert [(ref.site, ref.digest) for ref in wanted] == [
        (site, sent["prototypes"]) for site, sent in sorted(before.items()) if sent
    ]
    assert {ref.site for ref in wanted} == {0, 1}  # the third has no labels
    assert all(not e.task.models["prototypes"] for e in played.of(0, "warmup"))


def test_the_common_answer_is_the_servers_encoder_with_the_helpers_mean_by_hand(played):
    sent = {d: b for e in played.seen for d, b in e.incoming.payloads.items()}
    model = build_model(played.experiment.model, (1, 8, 8), 10).eval()
    for exchange in played.of(2, EVALUATE):
        data = site_data(played.experiment, exchange.task.site)
        model.load_state_dict(played.server(exchange) | played.private(""))
        each = [load(sent[ref.digest]) for ref in exchange.task.models["prototypes"]]
        masks = torch.stack([one["mask"] for one in each]).bool()
        right = 0
        with torch.no_grad():
            for image, label in zip(
                pixels(played.experiment, data.test), data.test_labels, strict=True
            ):
                f = model.embed(model.trunk(image[None]))[0]
                apart = torch.full((10,), torch.inf)
                for k in range(10):
                    if masks[:, k].any():
                        mean = torch.stack([o["centres"][k] for o in each])[masks[:, k]].mean(0)
                        apart[k] = (f - mean).norm()
                right += int(apart.argmin()) == int(label)
        found = exchange.reply.evaluations
        assert found["test"].correct == found["test_common"].correct == right


def test_traffic_counts_models_and_prototypes_by_role(played):
    with (played.folder.path / "traffic.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["direction"] == "up"]
    sent = [blob for e in played.seen for blob in e.incoming.payloads.values()]
    for kind, wanted in (("prototypes", True), ("model", False)):
        sizes = [len(blob) for blob in sent if ("mask" in load(blob)) == wanted]
        of = [row for row in rows if row["kind"] == kind]
        assert sum(int(row["bytes"]) for row in of) == sum(sizes) > 0
        assert sum(int(row["models"]) for row in of) == len(sizes)
    assert played.summary["models_up"] == len([b for b in sent if "mask" not in load(b)])


@pytest.mark.parametrize("answer", ["common", "tuned"])
def test_the_model_for_use_answers_as_the_run_measured(tmp_path, answer):
    folder = loopback(toy(FlexProto(answer=answer), tmp_path, DEALS))
    paths = sorted(folder.glob("**/model.json"))
    assert len(paths) == 3
    for path in paths:
        plain = json.loads(path.read_text())
        assert plain["results"]["exact"] is True
        assert [part["distance"] for part in plain["model"]["parts"]] == ["euclidean"]
        model, _ = load_model(path.parent, torch.device("cpu"))
        answers = model.probabilities(digits_like(5, 3))
        assert torch.allclose(answers.sum(1), torch.ones(5))


def test_a_federation_with_kept_squares_runs_and_resumes(tmp_path):
    method = FlexProto(keep_optimiser=True)
    over = {"training__optimiser": "rmsprop", "training__learning_rate": 1e-3}
    whole = play(toy(method, tmp_path, DEALS, **over))
    assert all(not row["skipped"] for row in whole.rows())
    part = toy(method, tmp_path, DEALS, name="cut", rounds__num_rounds=1, **over)
    play(part)
    rest = toy(method, tmp_path, DEALS, name="cut", runtime__resume=True, **over)
    assert play(rest).records() == whole.records()


def lying(spoil, since=1):
    """Site 1 spoils its prototypes from this round on."""

    def lie(task, incoming):
        told = (task.site, task.action) == (1, "train") and task.round >= since
        if not told or isinstance(incoming.answer, Refusal):
            return incoming
        old = incoming.answer.contents["prototypes"]
        blob = to_bytes(spoil(load(incoming.payloads[old])))
        answer = replace(incoming.answer, contents={"prototypes": digest_of(blob)})
        others = {d: b for d, b in incoming.payloads.items() if d != old}
        return replace(incoming, answer=answer, payloads={**others, digest_of(blob): blob})

    return lie


LIARS = (Deal(24, 12), Deal(6, 9), Deal(20, 14))


def test_a_site_that_sends_a_lie_is_left_out_by_name(tmp_path):
    def all_classes(content):
        return content | {"mask": torch.ones_like(content["mask"])}

    played = play(toy(FlexProto(), tmp_path, LIARS), lying(all_classes))
    for row in played.rows()[1:]:
        assert "prototypes: mask says that there is one of class" in row["skipped"]["1"]
    assert {e.task.site for e in played.of(2, "train")} == {0, 1, 2}


@pytest.mark.parametrize("cut", [None, 1])
def test_another_mask_than_before_is_refused_also_after_a_resume(tmp_path, cut):
    """It hides one class that its first mask had; nothing else tells the server."""

    def one_less(content):
        first = content["mask"].nonzero()[0]
        return {name: tensor.index_fill(0, first[0], 0) for name, tensor in content.items()}

    lie = lying(one_less, since=2)
    if cut:
        play(toy(FlexProto(), tmp_path, LIARS, rounds__num_rounds=cut), lie)
    played = play(toy(FlexProto(), tmp_path, LIARS, runtime__resume=bool(cut)), lie)
    assert [sorted(row["skipped"]) for row in played.rows()] == [[], [], ["1"]]
    assert "a site's labels stay the same in a run" in played.rows()[2]["skipped"]["1"]
