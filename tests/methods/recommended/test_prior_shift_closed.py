"""Prior shift with the closed form: what both answer together, and how their weights are fitted."""

from collections import Counter
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from io import StringIO

import pytest
import torch
from safetensors.torch import load

from fedapp.data.inputs import normalise
from fedapp.learn.class_priors import class_mix, reweighted, site_mix
from fedapp.learn.features import build_features
from fedapp.learn.metrics import evaluation, predict
from fedapp.learn.networks import build_model
from fedapp.methods.base import SiteContext
from fedapp.methods.closed_form._contents import ACTIONS, FILTERS, SOLUTION, Solution
from fedapp.methods.closed_form._discriminant import COUNTS
from fedapp.methods.closed_form._site import deciding_images, label_counts
from fedapp.methods.recommended._calibration import Fit
from fedapp.methods.recommended._stack import (
    FIT,
    FITTED,
    NUMBERS,
    ROUND_0_STEPS,
    STACK,
    START_WEIGHTS,
    fit_of,
)
from fedapp.methods.recommended.prior_shift import PriorShift
from fedapp.protocol.messages import EVALUATE, ONE_ROUND, SERVER_SITE, ModelRef
from tests.methods.closed_form.test_closed_checks import nothing, spoil, twice
from tests.methods.conformance import (
    SMALL,
    Deal,
    context,
    data_of,
    play,
    play_in_one_store,
    site_data,
    toy,
)

DEALS = (Deal(30, 20, 12, 12), Deal(24, 0, 12, 12), Deal(0, 25, 12, 12), Deal(6, 20, 0, 12))
METHOD = PriorShift(closed="hog", alone=False, answer="common", confidence=0.3)


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A run, and what it said on the terminal."""
    with redirect_stdout(StringIO()) as said:
        run = play(toy(METHOD, tmp_path_factory.mktemp("stacked"), DEALS))
    return run, " ".join(said.getvalue().split())


@pytest.fixture(scope="module")
def played(told):
    return told[0]


def logits_by_hand(played, site, images, stack):
    """a_1 times the network's, a_2 times the closed form's own head's, and a number a class."""
    data = site_data(played.experiment, site)
    x = normalise(images, data.mean, data.std)
    network = build_model(played.experiment.model, (1, 8, 8), 10).eval()
    network.load_state_dict(played.newest("model"))
    features, solution = (
        build_features("hog", (1, 8, 8)),
        Solution.from_params(played.newest(SOLUTION)),
    )
    own = normalise(data.labelled, data.mean, data.std)
    weight, bias = solution.head(features.of(own), data.labels, solution.own_weight)
    with torch.no_grad():
        first, second = network(x), features.of(x) @ weight.T + bias
    a, b = stack["weights"]
    return a * first + b * second, solution


def test_the_common_answer_is_that_of_both_by_hand(played):
    stack = played.newest(STACK)
    assert not torch.equal(stack["weights"], torch.tensor(START_WEIGHTS))
    for exchange in played.of(2, EVALUATE):
        site = exchange.task.site
        data = site_data(played.experiment, site)
        other, solution = logits_by_hand(played, site, data.unlabelled, stack)
        labelled = torch.bincount(data.labels, minlength=10)
        mix = site_mix(labelled, torch.softmax(other, 1), solution.prior)
        z, _ = logits_by_hand(played, site, data.test, stack)
        wanted = evaluation(reweighted(torch.softmax(z, 1), mix).float(), data.test_labels)
        found = exchange.reply.evaluations["test_common"]
        assert found.confusion == wanted.confusion
        assert found.bin_confidence == pytest.approx(wanted.bin_confidence, abs=1e-4)


@pytest.mark.parametrize("site", range(4))
def test_the_model_to_be_used_answers_as_measured(played, site):
    task, context = played.at_the_end(site)
    [one] = METHOD.used(task, context).values()
    network = one.load_into(build_model(played.experiment.model, (1, 8, 8), 10))
    data = site_data(played.experiment, site)
    plain = predict(network, data.test, partial(normalise, mean=data.mean, std=data.std))
    [last] = [e for e in played.of(2, EVALUATE) if e.task.site == site]
    found = evaluation(one.reweight(plain).float(), data.test_labels)
    assert found == last.reply.evaluations["test"]


def test_pseudo_labels_are_the_answers_of_both(played):
    task, context = played.at_the_end(0)
    taught = METHOD._taught(task, context)
    z, solution = logits_by_hand(played, 0, context.data.unlabelled, played.newest(STACK))
    mix = site_mix(label_counts(context), torch.softmax(z, 1), solution.prior)
    wanted = reweighted(torch.softmax(z, 1), mix)
    torch.testing.assert_close(taught.mix, mix, rtol=1e-4, atol=1e-5)
    assert len(taught.kept)
    torch.testing.assert_close(taught.soft, wanted[taught.kept].float(), rtol=1e-3, atol=1e-4)


# --- the fit --------------------------------------------------------------------------------------


def test_newtons_steps_are_some_in_round_0_and_one_in_each_later_round(played):
    for number in range(3):
        asked = [e.task.site for e in played.of(number, FIT)]
        assert asked == list(range(4)) * (1 if number else ROUND_0_STEPS)


def test_a_sites_sums_by_hand(played):
    """Of the deciding validation images, at the weights that its task names."""
    stacks = {digest: blob for e in played.seen for digest, blob in e.down.items()}
    asked = played.of(2, FIT)
    sums = [
        Fit.from_numbers(load(next(iter(e.incoming.payloads.values())))[NUMBERS]) for e in asked
    ]
    stack = load(stacks[asked[0].task.models[STACK][0].digest])
    for exchange, found in zip(asked, sums, strict=True):
        _, context = played.at_the_end(exchange.task.site)
        chosen = deciding_images(context)
        z, _ = logits_by_hand(played, exchange.task.site, context.data.val[chosen], stack)
        mix = class_mix(label_counts(context), torch.empty(0, 10))
        labels = context.data.val_labels[chosen]
        logs = torch.log_softmax(z.double() + mix.log(), 1)[torch.arange(len(labels)), labels]
        assert found.images == len(chosen)
        assert found.loglik == pytest.approx(float(logs.sum()), rel=1e-4, abs=1e-4)
    # And one of Newton's steps from there is what the tasks after it name.
    weights = sum(sums[1:], sums[0]).step(
        stack["weights"].double(), torch.tensor(START_WEIGHTS).double()
    )
    torch.testing.assert_close(played.newest(STACK)["weights"], weights.float())


def test_without_validation_images_the_weights_stay_what_they_were(tmp_path):
    deals = tuple(deal._replace(val=0) for deal in DEALS[:2])
    played = play(toy(METHOD, tmp_path, deals, rounds__num_rounds=1))
    assert played.newest(STACK)["weights"].tolist() == pytest.approx(START_WEIGHTS)


def test_the_fit_raises_what_is_right(played):
    """The likelihood of the deciding images at round 0's last step, against that at the start."""
    first = played.of(0, FIT)
    values = [
        sum(Fit.from_numbers(load(next(iter(e.incoming.payloads.values())))[NUMBERS]).loglik
            for e in first[4 * step : 4 * step + 4])
        for step in range(ROUND_0_STEPS)
    ]  # fmt: skip
    assert values[-1] > values[0]


def test_the_closed_form_is_measured_before_any_training(played):
    early = [e for e in played.of(0, EVALUATE) if "server" not in e.task.models]
    assert [e.task.site for e in early] == [0, 1, 2, 3]
    for exchange in early:
        assert f"test_{ONE_ROUND}" in exchange.reply.evaluations
        assert ("test_alone" in exchange.reply.evaluations) == bool(DEALS[exchange.task.site][0])


def test_it_is_said_how_good_the_closed_form_is_before_any_training(told):
    played, said = told
    early = [e for e in played.of(0, EVALUATE) if "server" not in e.task.models]
    right = [e.reply.evaluations[f"test_{ONE_ROUND}"].accuracy for e in early]
    mean = 100 * sum(right) / len(DEALS)
    assert f"the closed form, before any training: {mean:.1f} % right, sites' mean" in said


def test_the_fit_leaves_out_images_of_classes_that_nobody_has_labels_of(played):
    """At no weight can the closed form answer them."""
    task, site = played.at_the_end(0)
    labels = site.data.val_labels[deciding_images(site)]
    solution, unknown = site.contents(task.models[SOLUTION][0]), int(labels[0])
    without = {**solution, COUNTS: solution[COUNTS].index_fill(0, torch.tensor(unknown), 0)}
    ref = ModelRef(SERVER_SITE, 9, "e" * 64, SOLUTION)
    task = replace(task, models={**task.models, SOLUTION: (ref,)})
    contents = site.contents
    site = replace(site, contents=lambda of: without if of == ref else contents(of))
    fit = Fit.from_numbers(fit_of("hog", task, site)[NUMBERS])
    assert 0 < fit.images == int((labels != unknown).sum()) < len(labels)


# --- a frozen network's features ------------------------------------------------------------------


@pytest.mark.parametrize("site", [0, 3])
def test_a_frozen_networks_features_stay_those_of_w_0(tmp_path, site):
    """The sites' own networks learn; the solution is over features of w_0."""
    method = PriorShift(closed="network", alone=False, answer="common", confidence=0.3)
    played = play(toy(method, tmp_path, DEALS))
    task, context = played.at_the_end(site)
    assert task.own.version  # it has learned
    [one] = method.used(task, context, ONE_ROUND).values()
    w_0 = played.w_0()
    assert all(torch.equal(one.params[f"map.network.{name}"], of) for name, of in w_0.items())
    assert all(torch.equal(played.newest(FILTERS)[name], of) for name, of in w_0.items())
    [early] = [
        e for e in played.of(0, EVALUATE)
        if e.task.site == site and "server" not in e.task.models
    ]  # fmt: skip
    network, data = one.load_into(build_model(SMALL, (1, 8, 8), 10)), context.data
    plain = predict(network, data.test, context.normalise)
    found = evaluation(one.reweight(plain).float(), data.test_labels)
    assert found == early.reply.evaluations[f"test_{ONE_ROUND}"]


# --- without it -----------------------------------------------------------------------------------


def test_without_a_closed_form_nothing_of_it_is_sent(tmp_path):
    method = PriorShift()
    assert method.closed == "none" and not method.roles(build_model(SMALL, (1, 8, 8), 10))
    played = play(toy(method, tmp_path, DEALS, rounds__num_rounds=1))
    assert not {e.task.action for e in played.seen} & {*ACTIONS, FIT}
    for exchange in played.seen:
        assert not exchange.reply.contents and not exchange.task.models.keys() - {"server"}


# --- bad answers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("change", "says"), [
    (twice, "fitted: "), (nothing, None),
], ids=["twice", "nothing"])  # fmt: skip
def test_bad_fitted_sums_are_left_out_and_the_others_go_on(tmp_path, change, says):
    experiment = toy(METHOD, tmp_path, DEALS, rounds__num_rounds=1)
    played = play(experiment, spoil(FIT, change))
    for row in played.rows():
        assert row["sites_evaluated"] == 4
        if says:
            assert row["skipped"].keys() == {"1"} and row["skipped"]["1"].startswith(says)
    assert FITTED in played.engine.schemas


def test_the_newest_model_comes_once_for_the_fit_and_to_be_measured(played):
    """It is named by both, and by the steps of round 0 again; its bytes come with the first."""
    for number in (0, 1, 2):
        for site in range(len(DEALS)):
            both = [*played.of(number, FIT), *played.of(number, EVALUATE)]
            asked = [e for e in both if e.task.site == site and "server" in e.task.models]
            assert len(asked) > 1
            newest = asked[0].task.models["server"][0].digest
            assert all(e.task.models["server"][0].digest == newest for e in asked)
            assert sum(newest in e.down for e in asked) <= 1


@pytest.mark.parametrize("method", [METHOD, PriorShift(confidence=0.3)], ids=["closed", "lone"])
def test_no_model_is_asked_twice_about_the_same_images(method, tmp_path, monkeypatch):
    """What a round measured teaches the next one; who did not train says what it said before."""
    asked = Counter()
    answers = SiteContext.answers

    def counted(site, name, of, parts, ask):
        def once(missing):
            asked.update((site.data.site, name, of, part) for part in missing)
            return ask(missing)

        wanted.update((site.data.site, name, of, part) for part in parts)
        return answers(site, name, of, parts, once)

    wanted = Counter()
    monkeypatch.setattr(SiteContext, "answers", counted)
    play_in_one_store(toy(method, tmp_path, DEALS))
    assert set(asked) == set(wanted) and set(asked.values()) == {1}
    assert wanted.total() > 1.2 * asked.total()


def test_an_answer_is_asked_again_when_it_is_of_something_else():
    site, calls = context(data_of(), {}), []

    def ask(parts):
        calls.append(tuple(parts))
        return [torch.tensor([len(calls)]) for _ in parts]

    def said(*given):
        return [int(found) for found in site.answers(*given, ask)]

    assert said("common", ("a",), ("val", "test")) == [1, 1]
    assert said("common", ("a",), ("val", "labelled", "val")) == [1, 2, 1]
    assert said("tuned", ("a",), ("val",)) == [3]
    assert said("common", ("b",), ("val",)) == [4]
    assert said("common", ("a",), ("val",)) == [5]  # only the last one is kept
    assert calls == [("val", "test"), ("labelled",), ("val",), ("val",), ("val",)]
