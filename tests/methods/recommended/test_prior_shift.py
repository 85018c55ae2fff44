"""Prior shift: labels corrected by the class mix, pseudo-labels by their worth, three answers."""

from dataclasses import replace

import pytest
import torch

from fedapp.core.errors import ProtocolError
from fedapp.core.rng import numpy_stream
from fedapp.data.sites import Audit, Part
from fedapp.experiment.config import load_experiment
from fedapp.learn.class_priors import class_mix, reweighted
from fedapp.learn.metrics import evaluation
from fedapp.learn.networks import build_model
from fedapp.learn.training import descend
from fedapp.methods.averaging.base import work_of
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.recommended._corrected import corrected_steps
from fedapp.methods.recommended.prior_shift import SURE_COUNTS, PriorShift, Taught, deciding_images
from fedapp.protocol.messages import Reply, SiteFacts
from tests.methods.conformance import (
    MEASURE,
    OTHER,
    PIXELS,
    SERVER,
    START,
    TASK,
    Deal,
    assert_beside_never_travels,
    assert_close,
    assert_same,
    beside_of,
    context,
    data_of,
    digits_like,
    mean_by_hand,
    pixels,
    play,
    site_data,
    state_of,
    toy,
)

LABELS_ALONE = PriorShift(pseudo_labels=False, alone=False, answer="common")
EVERYBODY = PriorShift(confidence=0.0, weigh=False)
"""Every answer is a pseudo-label that counts as much as a label."""
EVEN = torch.full((3,), 1 / 3, dtype=torch.float64)


def outputs(params, images, training=False):
    """Features and logits of a network with these tensors."""
    model = build_model(PIXELS, (1, 8, 8), 3)
    model.load_state_dict(params)
    model.train(training)
    with torch.no_grad():
        z = model.embed(model.trunk((images.float() / 255 - 0.5) / 0.25))
        return z, model.head(z)


def with_val(count):
    """Six labelled and five other images, and so many validation images; a real site."""
    labels = torch.arange(count) % 3
    data = data_of(labelled=6, unlabelled=5)
    return data.with_parts(val=Part(digits_like(count, 9), labels))


# --- labels alone ---------------------------------------------------------------------------------


def test_with_equally_frequent_classes_it_is_fedavg():
    """The correction is the same for every class, and the softmax does not see it."""
    training = {"local_epochs": 3, "momentum": 0.9}
    found = LABELS_ALONE.site_round(TASK, context(data_of(6), START, **training))
    plain = FedAvg().site_round(TASK, context(data_of(6), START, **training))
    assert_close(found.params, plain.params)
    assert found.memory is None and found.metrics["learned_from"] == 6
    assert found.metrics["loss"] == pytest.approx(plain.metrics["loss"], rel=1e-5)


def test_one_step_by_hand():
    """Labels 0, 1, 2, 0 and one image spread evenly: ln of 7, 4, 4 of 15 beside the logits."""
    data = data_of(labelled=4)
    found = LABELS_ALONE.site_round(TASK, context(data, START)).params
    z, logits = outputs(START, data.labelled, training=True)
    shift = (torch.tensor([7.0, 4.0, 4.0]) / 15).log()
    error = torch.softmax(logits + shift, 1) - torch.nn.functional.one_hot(data.labels, 3)
    wanted = {
        "head.weight": START["head.weight"] - 0.1 * error.T @ z / 4,
        "head.bias": START["head.bias"] - 0.1 * error.sum(0) / 4,
    }
    assert_close(found, wanted)


def test_the_warm_up_learns_from_labels_alone():
    warm_up = replace(TASK, round=0, action="warmup")
    data = data_of(labelled=6, unlabelled=5)
    site = context(data, START, memory=OTHER, warmup_epochs=1, warmup_rounds=1)
    found = EVERYBODY.site_round(warm_up, site)
    assert found.metrics["learned_from"] == 6


# --- pseudo-labels --------------------------------------------------------------------------------


def test_pseudo_labels_are_the_common_answers_that_are_sure_enough():
    data = data_of(labelled=6, unlabelled=5)
    _, logits = outputs(START, data.unlabelled)
    answers = torch.softmax(logits, 1)  # labels 0, 1, 2 twice each: an even mix
    top = answers.max(1).values
    least = top.sort().values[1:3].mean().item()
    taught = PriorShift(confidence=least, weigh=False)._taught(TASK, context(data, START))
    assert taught.kept.tolist() == (top >= least).nonzero().flatten().tolist()
    assert len(taught.kept) == 3 and taught.worth == 1
    torch.testing.assert_close(taught.soft, answers[taught.kept])


@pytest.mark.parametrize("labelled", [4, 0])
def test_pseudo_labels_are_learned_from_under_the_sites_own_class_mix(labelled):
    """Of labels 0, 1, 2, 0; without labels, by EM from answers to the unlabelled images."""
    data = data_of(labelled=labelled, unlabelled=5)
    answers = torch.softmax(outputs(START, data.unlabelled)[1], 1)
    none = torch.zeros(3, dtype=torch.int64)
    wanted = torch.tensor([7.0, 4, 4]).double() / 15 if labelled else class_mix(none, answers)
    taught = EVERYBODY._taught(TASK, context(data, START))
    torch.testing.assert_close(taught.mix, wanted)
    assert not torch.allclose(taught.mix, EVEN, atol=1e-3)
    torch.testing.assert_close(taught.soft, reweighted(answers, wanted).float())


def steps_over(taught, site):
    work = work_of(TASK, site)
    return corrected_steps(work, taught.kept, taught.soft, taught.worth, taught.mix)


@pytest.mark.parametrize("worth", [0.25, 1.0])
def test_one_step_with_pseudo_labels_by_hand(worth):
    """Mean over labelled images + worth times the mean over the others; pi_k beside all logits."""
    data, soft = data_of(labelled=4, unlabelled=3), torch.tensor([[0.6, 0.3, 0.1]] * 3)
    site = context(data, START, momentum=0.0)
    site.load(SERVER)
    mix = torch.tensor([7.0, 4.0, 4.0], dtype=torch.float64) / 15
    taught = Taught(mix, torch.arange(3), soft, torch.tensor(worth))
    descend(site.model, steps_over(taught, site), site.training)
    # 4 labelled images a step and all 3 others: the larger part is passed once.
    z, logits = outputs(START, torch.cat([data.labelled, data.unlabelled]), training=True)
    error = torch.softmax(logits + mix.log().float(), 1)
    error -= torch.cat([torch.nn.functional.one_hot(data.labels, 3).float(), soft])
    error[:4] /= 4
    error[4:] *= worth / 3
    wanted = {"head.weight": START["head.weight"] - 0.1 * error.T @ z}
    assert_close(
        state_of(site.model), wanted | {"head.bias": START["head.bias"] - 0.1 * error.sum(0)}
    )


def test_labels_drawn_alike_are_corrected_by_that_mix_and_pseudo_labels_by_the_sites():
    """Of labels 0, 1, 2, 0 each class is drawn as often: ln 1/3; beside the others ln pi_k."""
    data, soft = data_of(labelled=4, unlabelled=3), torch.tensor([[0.6, 0.3, 0.1]] * 3)
    mix = torch.tensor([7.0, 4.0, 4.0], dtype=torch.float64) / 15
    site = context(data, START, uneven="balanced")
    taught = Taught(mix, torch.arange(3), soft, torch.tensor(1.0))
    [step] = steps_over(taught, site)
    _, known, others, added, _ = step.batch
    assert (len(known), len(others)) == (4, 3)
    torch.testing.assert_close(
        added.exp().double(), torch.cat([EVEN.expand(4, -1), mix.expand(3, -1)])
    )


def test_pseudo_labels_without_labels_count_what_they_are_worth():
    data, soft = data_of(labelled=0, unlabelled=3), torch.tensor([[0.6, 0.3, 0.1]] * 3)
    found = []
    for worth, rate in ((0.5, 0.2), (1.0, 0.1)):
        site = context(data, START, learning_rate=rate)
        site.load(SERVER)
        taught = Taught(EVEN, torch.arange(3), soft, torch.tensor(worth))
        descend(site.model, steps_over(taught, site), site.training)
        found.append(state_of(site.model))
    assert_close(found[0], found[1])  # half as much at twice the rate


def steps_of(known, kept, site_settings):
    """(labelled, other) images of every mini-batch."""
    data = data_of(labelled=known, unlabelled=kept)
    site, seen = context(data, START, **site_settings), []
    site.load(SERVER)
    taught = Taught(EVEN, torch.arange(kept), torch.full((kept, 3), 1 / 3), torch.tensor(1.0))
    for step in steps_over(taught, site):
        views, labels, soft, *_ = step.batch
        assert len(views) == len(labels) + len(soft)
        assert (labels.max(1).values == 1).all() and torch.allclose(soft, torch.tensor(1 / 3))
        seen.append((len(labels), len(soft)))
    return seen


def test_every_step_has_labelled_images_and_one_pass_is_of_the_larger_part():
    assert steps_of(3, 40, {"batch_size": 8}) == [(3, 8)] * 5
    assert steps_of(40, 3, {"batch_size": 8, "local_epochs": 2}) == [(8, 3)] * 10
    assert steps_of(0, 16, {"batch_size": 8}) == [(0, 8)] * 2
    assert steps_of(16, 0, {"batch_size": 8}) == [(8, 0)] * 2
    assert steps_of(0, 0, {"batch_size": 8}) == []


# --- what a pseudo-label is worth -----------------------------------------------------------------


def worth(right, total, everybody=(0, 0)):
    """Of a site with so many sure answers to validation images."""
    data = data_of().with_parts(val=Part(digits_like(total, 3), torch.zeros(total).long()))
    val = torch.tensor([[1.0, 0, 0]] * right + [[0, 1.0, 0]] * (total - right)).reshape(-1, 3)
    task = replace(TASK, numbers=dict(zip(SURE_COUNTS, map(float, everybody), strict=True)))
    return PriorShift()._worth(val, task, context(data, START)).item()


@pytest.mark.parametrize(("own", "everybody", "wanted"), [
    # Wilson's lower end at z = 1 is (p + 1/2n - sqrt(p (1 - p) / n + 1/4n^2)) / (1 + 1/n).
    ((9, 9), (0, 0), 0.8),                  # all right: n / (n + 1) = 0.9
    ((0, 0), (4, 4), 0.6),                  # 4 / 5: fewer than SHARED count as they are
    ((0, 0), (400, 400), 9 / 11),           # 400 count as 10: 10 / 11
    ((9, 9), (400, 400), 0.9),              # 19 / 20
    ((0, 0), (8, 8), 7 / 9),
    ((4, 8), (0, 0), 0.0),                  # half of them: no more right than wrong
    ((0, 9), (0, 0), 0.0),
    ((0, 0), (0, 0), 0.0),                  # nothing is known
])  # fmt: skip
def test_the_worth_by_hand(own, everybody, wanted):
    assert worth(*own, everybody) == pytest.approx(wanted)


def test_the_worth_of_mixed_counts_by_hand():
    """15 of 16 own and 300 of 400, as 7.5 of 10: p = 22.5 / 26."""
    n, p = 26, 22.5 / 26
    low = (p + 1 / (2 * n) - (p * (1 - p) / n + 1 / (4 * n * n)) ** 0.5) / (1 + 1 / n)
    assert worth(15, 16, (300, 400)) == pytest.approx(2 * low - 1)


def test_answers_that_are_not_sure_do_not_count():
    data = with_val(3)
    val = torch.tensor([[0.79, 0.21, 0], [0.9, 0.1, 0], [0.05, 0.05, 0.9]])
    assert PriorShift()._sure(val, context(data, START)) == ([1], [2])  # labels 0, 1, 2


def test_without_validation_images_the_other_sites_count_alone():
    task = replace(TASK, numbers={"sure_right": 9.0, "sure_total": 9.0})
    site = context(with_val(0), START)
    assert PriorShift(confidence=0.0)._taught(task, site).worth == pytest.approx(0.8)
    nothing = PriorShift(confidence=0.0)._taught(TASK, site)
    assert nothing.worth == 0 and not len(nothing.kept)
    assert EVERYBODY._taught(TASK, site).worth == 1


def test_a_site_says_that_it_learned_from_its_labels_and_the_worth_of_the_others():
    task = replace(TASK, numbers={"sure_right": 9.0, "sure_total": 9.0})
    site = context(with_val(0), START, memory=OTHER)
    found = PriorShift(confidence=0.0).site_round(task, site)
    assert found.metrics["learned_from"] == pytest.approx(6 + 0.8 * 5)


# --- the server -----------------------------------------------------------------------------------

FACTS = SiteFacts(0, (1, 8, 8), ("a", "b"), 8, 12, 5, 4, "0" * 64)


@pytest.mark.parametrize(("said", "weight"), [
    ({"learned_from": 8 + 0.5 * 6}, 11.0), ({"learned_from": 1e300}, 20), ({}, 0.0),
    ({"learned_from": -3.0}, 0.0), ({"learned_from": 20.5}, 20),
])  # fmt: skip
def test_a_sites_weight_is_what_it_learned_from_and_never_more_than_its_images(said, weight):
    assert PriorShift().weight(FACTS, Reply(0, 1, "0" * 64, metrics=said)) == weight


@pytest.mark.parametrize(("metrics", "says"), [
    ({"learned_from": -3.0}, "learned_from = -3; must not be negative"),
    ({"sure_total": FACTS.val + 1}, "sure_total = .*; must be a count in"),
    ({"sure_total": 0.5}, "sure_total = 0.5; must be a count"),
    ({"sure_total": 1, "sure_right": 2}, r"sure_right = 2; must be a count in \[0, 1\]"),
])  # fmt: skip
def test_what_a_site_cannot_have_counted_is_refused(metrics, says):
    with pytest.raises(ProtocolError, match=says):
        PriorShift().check_reply(TASK, Reply(0, 1, "0" * 64, metrics=metrics), FACTS)


@pytest.mark.parametrize("metric", ["learned_from", *SURE_COUNTS])
def test_a_boastful_site_is_no_more_than_its_images_or_is_left_out(tmp_path, metric):
    """1e308 images learned from are its own, as many sure answers are refused."""

    def boast(task, incoming):
        if task.site or not isinstance(incoming.answer, Reply):
            return incoming
        metrics = {**incoming.answer.metrics, metric: 1e308}
        return replace(incoming, answer=replace(incoming.answer, metrics=metrics))

    deals = (Deal(9, 12), Deal(20, 3), Deal(5, 9))
    played = play(toy(EVERYBODY, tmp_path, deals), boast)
    refused = {} if metric == "learned_from" else {"0": f"metric {metric} = 1e+308; "}
    for row in played.rows():
        assert row["skipped"].keys() == refused.keys()
        assert all(row["skipped"][site].startswith(said) for site, said in refused.items())
    everybody = 3 - len(refused)
    learned = [e.upload for e in played.of(1, "train")][-everybody:]
    mean = mean_by_hand(learned, [21, 23, 14][-everybody:])
    assert_close(played.server(played.of(1, "evaluate")[-1]), mean)
    assert all(e.task.numbers["sure_total"] <= 12 for e in played.of(2, "train"))


def sums_of(replies):
    return {name: sum(r.metrics[name] for r in replies) for name in SURE_COUNTS}


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """A run whose pseudo-labels count, on sites that have labels, few labels and none."""
    deals = (Deal(9, 12, 8), Deal(20, 3, 8), Deal(0, 9, 8), Deal(5, 0, 8))
    folder, method = tmp_path_factory.mktemp("prior_shift"), PriorShift(confidence=0.0, weigh=False)
    changes = {"training__warmup_rounds": 2, "training__warmup_epochs": 2, "model__dropout": 0.0}
    return play(toy(method, folder, deals, **changes))


def test_the_sites_counts_are_added_up_and_sent_along(played):
    assert all(
        e.task.numbers == {"sure_right": 0.0, "sure_total": 0.0} for e in played.of(0, "warmup")
    )
    for number in (1, 2):
        before = [e.reply for e in played.of(number - 1, "evaluate")]
        assert sums_of(before)["sure_total"] > 0
        for exchange in played.of(number, "train"):
            assert exchange.task.numbers == sums_of(before)


def test_the_average_is_by_what_sites_learned_from(played):
    assert [e.reply.metrics.get("learned_from") for e in played.of(0, "warmup")][:4] == [
        9,
        20,
        None,
        5,
    ]
    learned = [e.reply.metrics["learned_from"] for e in played.of(1, "train")]
    assert learned == [21, 23, 9, 5]
    mean = mean_by_hand([e.upload for e in played.of(1, "train")], learned)
    for exchange in played.of(1, "evaluate"):
        assert_close(played.server(exchange), mean)


# --- what a site answers --------------------------------------------------------------------------


def probabilities(experiment, params, images):
    model = build_model(experiment.model, (1, 8, 8), 10)
    model.load_state_dict(params)
    model.eval()
    with torch.no_grad():
        return torch.softmax(model(pixels(experiment, images)), 1).double()


def mix_by_hand(data, answers):
    counts = torch.bincount(data.labels, minlength=10).double()
    if len(data.labels):
        return (counts + 0.1) / (len(data.labels) + 1)
    mix = torch.full((10,), 0.1, dtype=torch.float64)
    for _ in range(3000):
        each = answers * mix
        mix = ((each / each.sum(1, keepdim=True)).sum(0) + 0.03 * len(each)) / (1.3 * len(each))
    return mix


def test_the_common_answer_is_the_models_times_the_class_mix(played):
    """With labels and without; and the own network's answer likewise."""
    for exchange in played.of(2, "evaluate"):
        data = site_data(played.experiment, exchange.task.site)
        common = played.server(exchange)
        mix = mix_by_hand(data, probabilities(played.experiment, common, data.unlabelled))
        [last] = [e for e in played.of(2, "train") if e.task.site == exchange.task.site]
        for name, params in (("common", common), ("tuned", last.upload)):
            products = probabilities(played.experiment, params, data.test) * mix
            wanted = evaluation(products / products.sum(1, keepdim=True), data.test_labels)
            found = exchange.reply.evaluations[f"test_{name}"]
            assert found.confusion == wanted.confusion
            assert found.bin_confidence == pytest.approx(wanted.bin_confidence, abs=1e-4)


def test_the_answer_of_the_model_trained_alone_is_its_own(played):
    for exchange in played.of(2, "evaluate"):
        data = site_data(played.experiment, exchange.task.site)
        if not len(data.labels):
            assert not {"test_alone", "val_alone"} & exchange.reply.evaluations.keys()
            continue
        [last] = [e for e in played.of(2, "train") if e.task.site == exchange.task.site]
        wanted = evaluation(
            probabilities(played.experiment, beside_of(last), data.test), data.test_labels
        )
        assert exchange.reply.evaluations["test_alone"].confusion == wanted.confusion


@pytest.mark.parametrize("answer", ["common", "tuned"])
def test_a_site_told_so_gives_one_answer(answer):
    site = context(with_val(4), START, memory=OTHER)
    results = PriorShift(answer=answer).site_round(MEASURE, site).evaluations
    assert (
        results["test"] == results[f"test_{answer}"] and results["val"] == results[f"val_{answer}"]
    )


def test_a_site_that_never_trained_has_the_common_answer_alone():
    task = replace(MEASURE, own=replace(TASK.own, version=0))
    for answer in ("tuned", "mixture"):
        results = (
            PriorShift(answer=answer).site_round(task, context(with_val(4), START)).evaluations
        )
        assert results.keys() == {"test", "val", "test_common", "val_common"}
        assert results["test"] == results["test_common"]


# --- the mixture ----------------------------------------------------------------------------------


def simulated(count, mu=(3, 6)):
    """A site in simulation with so many validation images, labels on 3 of 9 images."""
    known, other = mu
    data = data_of(labelled=known, unlabelled=other)
    labels = torch.arange(count) % 3
    audit = Audit(torch.zeros(other).long())
    return replace(data.with_parts(val=Part(digits_like(count, 9), labels)), audit=audit)


def test_in_simulation_as_large_a_share_decides_as_has_labels():
    """round(mu n), drawn by seed and site, none twice."""
    for count, wanted in ((0, 0), (1, 0), (10, 3), (30, 10)):
        found = deciding_images(context(simulated(count), START))
        assert len(found) == len(set(found.tolist())) == wanted
        order = numpy_stream(5, "deciding", 0).permutation(count)
        assert found.tolist() == order[:wanted].tolist()
    other = deciding_images(context(replace(simulated(30), site=1), START)).tolist()
    assert other != found.tolist()
    assert len(deciding_images(context(simulated(30, mu=(0, 6)), START))) == 0
    assert len(deciding_images(context(simulated(30, mu=(6, 0)), START))) == 30


def test_on_a_real_site_all_decide():
    assert deciding_images(context(with_val(7), START)).tolist() == list(range(7))


VAL = {
    "common": torch.tensor([[0.7, 0.2, 0.1]] * 6, dtype=torch.float64),
    "alone": torch.tensor([[0.1, 0.8, 0.1], [0.2, 0.1, 0.7]] * 3, dtype=torch.float64),
}


def test_without_deciding_images_all_answers_weigh_the_same():
    nothing = Part(digits_like(0, 1), torch.empty(0).long())
    site = context(simulated(6).with_parts(labelled=nothing), START)
    mean = (VAL["common"] + VAL["alone"]) / 2
    torch.testing.assert_close(PriorShift()._held_out(VAL, site), mean)
    assert PriorShift()._trust(VAL, site, deciding_images(site)).tolist() == [0.5, 0.5]


def test_the_trust_by_hand():
    """All six images are of class 0: likelihoods 0.7 and, in turn, 0.1 and 0.2. EM's fixed point
    w has (6 + 2) w = 1 + sum_i 0.7 w / (0.7 w + l_i (1 - w))."""
    data = with_val(6)
    data = data.with_parts(val=Part(data.val, torch.zeros(6).long()))
    site = context(data, START)
    w, rest = PriorShift()._trust(VAL, site, deciding_images(site)).tolist()
    right = 1 + sum(3 * 0.7 * w / (0.7 * w + other * (1 - w)) for other in (0.1, 0.2))
    assert 8 * w == pytest.approx(right, abs=1e-6) and w + rest == pytest.approx(1) and w > 0.7


@pytest.mark.parametrize("data", [with_val(6), simulated(6, mu=(4, 2))], ids=["real", "simulated"])
def test_an_images_own_label_changes_nothing_about_its_answer(data):
    """Flip one label: its own held-out answer stays, and some other one changes."""
    before = PriorShift()._held_out(VAL, context(data, START))
    chosen = deciding_images(context(data, START)).tolist()
    for image in range(6):
        labels = data.val_labels.clone()
        labels[image] = (labels[image] + 1) % 3
        flipped = data.with_parts(val=Part(data.val, labels))
        after = PriorShift()._held_out(VAL, context(flipped, START))
        assert torch.equal(after[image], before[image])
        assert torch.equal(after, before) == (image not in chosen)


def test_the_used_answer_is_the_mixture_that_it_says():
    site = context(with_val(5), START, memory=OTHER)
    task = replace(MEASURE, private="c" * 64)
    _, [val, test] = PriorShift()._answers(task, site, "val", "test")
    assert list(val) == list(test) == ["common", "tuned", "alone"]
    weights = PriorShift()._trust(val, site, torch.arange(5))
    wanted = sum(w * answers for w, answers in zip(weights, test.values(), strict=True))
    found = PriorShift().site_round(task, site).evaluations["test"]
    assert found == evaluation(wanted.float(), site.data.test_labels)


# --- the model trained alone ----------------------------------------------------------------------


def test_alone_is_training_alone_with_the_same_draws():
    """FedAvg's training of the site's own model, with streams of its own; no other image counts."""
    training = {"local_epochs": 3, "momentum": 0.9, "batch_size": 2, "augment": "weak"}
    data = data_of(labelled=6, unlabelled=5)
    found = [
        method.site_round(TASK, context(each, w_t, memory=OTHER, **training)).memory
        for method, each, w_t in (
            (PriorShift(), data, START),
            (EVERYBODY, data, START),
            (PriorShift(), data_of(labelled=6), OTHER),
        )
    ]

    class Renamed(type(context(data, START))):
        """Draws of FedAvg under the names of those here."""

        def stream(self, purpose, task):
            return super().stream({"shuffle": "alone-shuffle", "view": "alone-view"}[purpose], task)

        def drawing(self, task, purpose="train"):
            return super().drawing(task, "alone")

    plain = context(data, OTHER, **training)
    renamed = Renamed(**{name: getattr(plain, name) for name in plain.__dataclass_fields__})
    wanted = FedAvg().site_round(TASK, renamed).params
    for each in found:
        assert_same(each, wanted)


def test_no_message_holds_it(played):
    without_labels = [e for e in played.seen if e.task.site == 2]
    for exchange in (e for e in without_labels if e.private):  # what it has is what all know
        assert_same(beside_of(exchange), played.w_0())
    others = replace(played, seen=[e for e in played.seen if e.task.site != 2])
    assert_beside_never_travels(others, frozenset(played.w_0()))


def test_without_it_nothing_is_kept(tmp_path):
    played = play(toy(PriorShift(alone=False), tmp_path))
    assert not any(e.reply.private for e in played.seen)
    assert not any("test_alone" in e.reply.evaluations for e in played.seen)


def test_a_site_without_labels_gives_w_0_no_vote():
    """It has a tensor beside, w_0's, which nobody has trained."""
    data = data_of(labelled=0, unlabelled=5)
    site = context(data, START, memory=OTHER)
    assert EVERYBODY.site_round(TASK, site).memory is None
    results = EVERYBODY.site_round(replace(MEASURE, private="c" * 64), site).evaluations
    assert results.keys() == {f"{p}{n}" for p in ("val", "test") for n in ("", "_common", "_tuned")}


# --- sites that lack something, and runs that are cut ---------------------------------------------


def test_with_nobody_to_say_how_often_answers_are_right_pseudo_labels_count_nothing(tmp_path):
    deals = (Deal(8, 5, 0), Deal(0, 7, 0))
    played = play(toy(PriorShift(confidence=0.0), tmp_path, deals))
    assert not any(e.incoming.payloads for e in played.seen if e.task.site == 1)
    learned = [e.reply.metrics.get("learned_from") for e in played.of(2, "train")]
    assert learned == [8, None]


@pytest.mark.parametrize("preset", ["recommended", "prior_shift", "fedavg"])
def test_a_preset_is_spoken_of_by_its_name(preset):
    settings = {"method.preset": preset}
    assert load_experiment("digits_demo", settings).method.called == preset
