"""One round: the same solution for any split, sites that lack something, resumed, joined."""

import math
from collections import Counter
from dataclasses import replace
from functools import partial, reduce

import pytest
import torch

from fedapp.core.errors import ConfigError, RunError
from fedapp.data.inputs import normalise
from fedapp.data.sites import Part
from fedapp.experiment.config import from_plain, load_experiment, to_plain
from fedapp.learn.class_priors import reweighted, site_mix
from fedapp.learn.features import FeatureMap, build_features
from fedapp.learn.features.hog import Hog
from fedapp.learn.features.network import FrozenNetwork
from fedapp.learn.features.plain import Plain
from fedapp.learn.metrics import evaluation
from fedapp.learn.networks import build_model
from fedapp.learn.networks.mlp import MLPSettings
from fedapp.learn.networks.resnet9 import ResNet9Settings
from fedapp.learn.params import max_bytes
from fedapp.learn.predictors import answer_of
from fedapp.methods.closed_form._contents import (
    COUNT,
    FEW,
    FILTERS,
    GRID,
    GUESS,
    GUESSES,
    LEARN,
    OF_OTHERS,
    OWN_WEIGHTS,
    RIDGES,
    ROUNDED,
    ROUNDED_OTHERS,
    SOLUTION,
    TEMPERATURES,
    VOTE,
    VOTES,
    Solution,
    Votes,
    closed_schemas,
    own_weights,
)
from fedapp.methods.closed_form._discriminant import Classes, Guesses, Sums, sum_of
from fedapp.methods.closed_form._rounded import DIRECTIONS
from fedapp.methods.closed_form._server import (
    LEAST_RIDGE,
    MOST_GUESSES,
    MOST_RIDGE,
    log_prior,
)
from fedapp.methods.closed_form.one_round import OneRound
from fedapp.methods.incompatibilities import Conditions
from fedapp.protocol.messages import EVALUATE
from fedapp.simulation.in_process import Loopback
from fedapp.simulation.loopback import run_loopback
from fedapp.site.federation import federation_of
from tests.data.test_hospitals import written
from tests.methods.conformance import (
    Deal,
    Stop,
    Wire,
    cut_at,
    play,
    play_in_one_store,
    run_on,
    site_data,
    toy,
)

HOG, OVER_NETWORK = OneRound(), OneRound(features="network")
DEALS = (Deal(30, 20, 12, 12), Deal(24, 0, 12, 12), Deal(0, 25, 12, 12), Deal(12, 20, 0, 12),
         Deal(2, 0, 6, 12))  # fmt: skip
"""Of few labels, of none, without unlabelled images, without validation images, of two images."""
ONCE = {"rounds__num_rounds": 1}


def normalised(data, images):
    return normalise(images, data.mean, data.std)


def asks_for_others(task):
    return not OF_OTHERS.isdisjoint(task.numbers)


def solution(played):
    return Solution.from_params(played.newest(SOLUTION))


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    return play(toy(HOG, tmp_path_factory.mktemp("one_round"), DEALS))


# --- the solution ---------------------------------------------------------------------------------


@pytest.mark.parametrize("enough", [0.0, 9.0])
def test_the_solution_is_that_of_all_images_in_one_place(tmp_path, enough, monkeypatch):
    """Its means, its covariance and its head, but for float32; where no class is guessed.

    Of labelled images, few or many: nothing of others leaves a site.
    """
    monkeypatch.setattr(FeatureMap, "enough_labels", enough)
    played = play(toy(OneRound(guesses=0), tmp_path, DEALS))
    assert not any(asks_for_others(event.task) for event in played.seen)
    features = build_features("hog", (1, 8, 8))
    every = [site_data(played.experiment, site) for site in range(len(DEALS))]
    known = torch.cat(
        [features.of(normalised(data, data.parts["labelled"].inputs)) for data in every]
    )
    wanted = Classes.of(Sums.of(known, torch.cat([data.labels for data in every]), 10))
    found = solution(played)
    torch.testing.assert_close(found.classes.means, wanted.means, rtol=0, atol=1e-6)
    torch.testing.assert_close(found.classes.within, wanted.within, rtol=0, atol=1e-6)
    ridge = found.ridge / float(wanted.within.diagonal().mean())
    assert min(abs(ridge / one - 1) for one in RIDGES) < 1e-4
    assert found.temperature in TEMPERATURES and found.own_weight in OWN_WEIGHTS
    weight, bias = wanted.head(found.ridge)
    scale = float(weight.abs().max()) / found.temperature
    torch.testing.assert_close(
        found.weight.double(), weight / found.temperature, rtol=1e-3, atol=1e-3 * scale
    )
    torch.testing.assert_close(found.bias.double(), bias / found.temperature, rtol=1e-3, atol=0.01)


@pytest.mark.parametrize(
    ("answer", "enough", "likelier"),
    [("common", 0.0, (0, -1.9, -1.8, -1.8)), ("common", 0.5, (0, -2.1)),
     ("common", 9.0, (0, 5, 4.9)), ("tuned", 9.0, (0, 5, 6, 5.9)), ("tuned", 0.0, (0, 5, 6, 5.9))],
)  # fmt: skip
def test_class_means_are_of_guesses_as_long_as_labels_become_likelier(
    tmp_path, monkeypatch, answer, enough, likelier
):
    """The first guesses may make labels less likely by e^2, later ones must make them likelier.

    enough: labels for each feature, from which on the covariance stays that of labelled images.
    Means by hand, from each site's images in one place: guessed by the head that the site had
    before, its own labelled images counting more where all sites want that, times its class mix.
    """
    elections, own_weight = iter(likelier), OWN_WEIGHTS[3] if answer == "tuned" else 0.0

    def elected(rnd, before, models):
        yield []
        if GRID in models:
            return int(before.argmax()), Votes(next(elections), 9)
        return OWN_WEIGHTS.index(own_weight), Votes(0.0, 9)

    monkeypatch.setattr("fedapp.methods.closed_form._server.elect", elected)
    monkeypatch.setattr(FeatureMap, "enough_labels", enough)
    played = play(toy(OneRound(answer=answer), tmp_path, DEALS, **ONCE))
    assert next(elections, None) is None
    sites = [site_data(played.experiment, site) for site in range(len(DEALS))]
    build = build_features("hog", (1, 8, 8)).of
    known, other = (
        [build(normalised(data, data.parts[part].inputs)) for data in sites]
        for part in ("labelled", "unlabelled")
    )
    labels = [data.labels for data in sites]
    sums = [Sums.of(*of, 10) for of in zip(known, labels, strict=True)]
    total = sum_of(sums)
    every = reduce(
        Sums.with_others, (Sums.of(x, torch.full((len(x),), -1), 0) for x in other), total
    )
    first = classes = Classes.of(total)
    found, rounds = solution(played), len(likelier) - 2
    assert found.guessed == rounds == played.summary["closed_guessed"]
    before = log_prior(FeatureMap.default_temperature, total.counts, len(total.total))
    for _ in range(rounds):
        again = []
        level = classes.level(float(RIDGES[int(before.argmax()) // len(TEMPERATURES)]))
        for features, of, *own in zip(other, sums, known, labels, strict=True):
            more = bool(own_weight) and len(own[0])
            chosen = classes.with_own(*own, own_weight) if more else classes
            head = chosen.head(level, classes.dimensions(level))
            weight, bias = (of / FeatureMap.default_temperature for of in head)
            answers = torch.softmax(features.double() @ weight.T + bias, dim=1)
            mix = site_mix(of.counts, answers, found.prior)
            again.append(Guesses.of(features, reweighted(answers, mix)))
        guesses = sum_of(again)
        classes = Classes.of(every.with_guesses(guesses)) if enough else first.with_guesses(guesses)
    torch.testing.assert_close(found.classes.counts, classes.counts, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.classes.means, classes.means, rtol=0, atol=1e-4)
    torch.testing.assert_close(found.classes.within, classes.within, rtol=0, atol=1e-4)
    assert torch.equal(classes.within, first.within) == (not enough or not rounds)
    assert bool((found.classes.means - first.means).abs().max() > 1e-2) == (rounds > 0)


def test_guesses_are_not_likelier_because_a_sites_votes_are_missing(tmp_path):
    """A sum of negative numbers is larger without it; site 1 misses the second election."""
    grids = []

    def lost(task, incoming):
        if GRID not in task.models:
            return incoming
        grids.extend({task.models[GRID][0].digest}.difference(grids))
        return None if len(grids) > 1 and task.site == 1 else incoming

    deals = [Deal(30, 20, 12, 12), Deal(24, 9, 12, 12)]
    method = OneRound(answer="common")
    run = play(toy(method, tmp_path, deals, rounds__min_reply_share=0.0, **ONCE), lost)
    assert len(grids) == 2 and solution(run).guessed == 0


def test_without_unlabelled_images_there_is_nothing_to_guess(tmp_path):
    played = play(toy(HOG, tmp_path, [Deal(30, 0, 12, 12), Deal(24, 0, 12, 12)]))
    assert solution(played).guessed == 0 and not played.of(0, GUESS)


@pytest.mark.parametrize(("labelled", "asked"), [(71, True), (72, False)])
def test_sums_of_unlabelled_images_are_asked_for_only_where_labels_are_few(
    tmp_path, labelled, asked, monkeypatch
):
    """Here fewer than a tenth of the 720 features. A site without such images is not asked."""
    monkeypatch.setattr(FeatureMap, "enough_labels", 0.1)
    deals = [Deal(labelled - 20, 20, 12, 12), Deal(20, 0, 12, 12)]
    assert build_features("hog", (1, 8, 8)).size == 720
    run = play(toy(HOG, tmp_path, deals, **ONCE))
    others = [e for e in run.of(0, COUNT) if asks_for_others(e.task)]
    assert [e.task.site for e in others] == [0] * asked


@pytest.mark.parametrize("silent", [(1,), (0, 1)])
def test_a_site_whose_other_sums_are_missing_does_not_guess(tmp_path, silent):
    """Its labelled images count. Without any such sums the covariance is of labelled images."""

    def fails(task, incoming):
        return None if asks_for_others(task) and task.site in silent else incoming

    deals = [Deal(30, 20, 12, 12), Deal(24, 9, 12, 12)]
    some = play(toy(HOG, tmp_path, deals, rounds__min_reply_share=0.0, **ONCE), fails)
    there = [site for site in (0, 1) if site not in silent] or [0, 1]
    assert {e.task.site for e in some.of(0, GUESS)} == set(there)
    assert solution(some).classes.images == 54 + 20 * (0 in there and silent == (1,))


@pytest.mark.parametrize(("holders", "never"), [((0, 1), ()), ((1,), ()), ((0, 1), (2,))])
def test_a_site_whose_other_sums_are_missing_is_asked_again(tmp_path, holders, never):
    """Once they are there, the solution is that of a run in which nothing was missing: also where
    nobody else has such images, and where another site never sends any sums."""

    def never_sends(task, incoming):
        return None if task.action == COUNT and task.site in never else incoming

    def fails_first(task, incoming):
        late = asks_for_others(task) and task.site == 1 and not task.round
        return None if late else never_sends(task, incoming)

    deals = [Deal(30, 20 * (0 in holders), 12, 12), Deal(24, 9, 12, 12), Deal(10, 0, 5, 12)]
    late, whole = (
        play(toy(HOG, tmp_path / name, deals, rounds__min_reply_share=0.0), tamper)
        for name, tamper in (("late", fails_first), ("whole", never_sends))
    )
    asked = [(e.task.round, e.task.site) for e in late.seen if asks_for_others(e.task)]
    assert asked == [*((0, site) for site in holders), (1, 1)]
    assert not any(e.task.action == VOTE and e.task.round > 1 for e in late.seen)
    one, two = solution(late), solution(whole)
    assert one.classes.images == two.classes.images
    assert torch.equal(one.weight, two.weight) and torch.equal(one.bias, two.bias)


def test_other_images_that_are_missing_stay_at_home_once_labels_are_enough(tmp_path, monkeypatch):
    """Site 1 fails to send them; in the next round the labels of site 2 come."""
    monkeypatch.setattr(FeatureMap, "enough_labels", 0.1)  # 72 labels

    def fails_first(task, incoming):
        late = task.site == 2 or (asks_for_others(task) and task.site == 1)
        return None if late and task.action == COUNT and not task.round else incoming

    deals = [Deal(30, 20, 12, 12), Deal(24, 9, 12, 12), Deal(40, 15, 12, 12)]
    played = play(toy(HOG, tmp_path, deals, rounds__min_reply_share=0.0), fails_first)
    asked = [(e.task.round, e.task.site) for e in played.seen if asks_for_others(e.task)]
    assert asked == [(0, 0), (0, 1)]


def test_where_a_newcomers_labels_are_enough_its_other_images_stay_at_home(tmp_path, monkeypatch):
    from tests.server.test_joining import Late

    monkeypatch.setattr(FeatureMap, "enough_labels", 0.1)  # 72 labels
    deals = [Deal(30, 20, 12, 12), Deal(24, 9, 12, 12), Deal(40, 15, 12, 12)]
    played = play_in_one_store(toy(HOG, tmp_path, deals), partial(Late, comes={2: 1}))
    asked = [(t.round, t.site) for t, _ in played.seen if asks_for_others(t)]
    assert asked == [(0, 0), (0, 1)]
    assert not any(t.action == VOTE and t.round > 1 for t, _ in played.seen)


@pytest.mark.parametrize("features", ["hog", "patches"])
def test_any_dealing_of_the_same_images_has_the_same_solution(tmp_path, features, monkeypatch):
    """One site with all of them, or three: a toy deals the images in order. Filters are learned
    from the same sums, to the bit. Chosen by hand: votes are by the sites' own mixes."""
    monkeypatch.setattr("fedapp.methods.closed_form._server.elect", nobody_votes)
    method = OneRound(features=features, answer="common", guesses=0)
    found = []
    for name, cut in (("one", (60,)), ("three", (7, 33, 20)), ("two", (0, 60))):
        deals = [Deal(0, count, 0, 0) for count in cut[:-1]] + [Deal(0, cut[-1], 0, 6)]
        experiment = toy(method, tmp_path / name, deals, **ONCE)
        federation = dealt_alike(federation_of(experiment), cut)
        found.append(run_over(experiment, federation))
    first, *others = found
    for other in others:
        if features == "patches":
            mine, theirs = first.newest(FILTERS), other.newest(FILTERS)
            assert all(torch.equal(mine[name], theirs[name]) for name in mine)
        one, two = solution(first), solution(other)
        torch.testing.assert_close(one.classes.means, two.classes.means, rtol=0, atol=1e-6)
        torch.testing.assert_close(one.classes.within, two.classes.within, rtol=0, atol=1e-6)
        torch.testing.assert_close(one.weight, two.weight, rtol=1e-3, atol=0.01)


def nobody_votes(rnd, before, models):
    yield []
    return int(before.argmax()), Votes(float(before.max()), 0)


def dealt_alike(federation, cut):
    """The pool of 60 images with labels on every other one, cut into sites' shares."""
    whole = torch.cat([federation.dealt.site(k).unlabelled for k in range(len(cut))])
    order = whole.flatten(1).float() @ torch.arange(64.0)
    whole, shares = whole[order.argsort()], []
    labels = torch.arange(60) % 10
    start = 0
    for site, count in enumerate(cut):
        some = torch.arange(start, start + count)
        known = some[some % 2 == 0]
        data = federation.dealt.site(site)
        shares.append(
            data.with_parts(
                labelled=Part(whole[known], labels[known]),
                unlabelled=Part(whole[some[some % 2 == 1]]),
            )
        )
        start += count
    return shares


def run_over(experiment, shares):
    """Run with sites of this data."""

    def carrier(_, folder, __):
        wire = Wire(experiment, folder.path / "remote")
        for k, data in enumerate(shares):
            wire.sites[k] = replace(wire.sites[k], data=replace(data, audit=None))
        return wire

    return run_on(experiment, carrier)


class Shuffled(Loopback):
    """Answers come in another order than they were asked for."""

    def exchange(self, outbox, fetch, deadline_s):
        return reversed(list(super().exchange(outbox, fetch, deadline_s)))


def test_the_order_of_replies_does_not_matter(tmp_path):
    one, other = (
        play_in_one_store(toy(HOG, tmp_path, DEALS, name=kind.__name__, **ONCE), kind)
        for kind in (Loopback, Shuffled)
    )
    assert one.records() == other.records()


def test_half_precision_of_models_does_not_reach_the_sums(tmp_path, played):
    """`transport.precision=float16` halves matrices; what the closed form sends is of vectors."""
    half = play(toy(HOG, tmp_path, DEALS, transport__precision="float16"))
    assert not any(row["skipped"] for row in half.rows())
    one, two = half.newest(SOLUTION), played.newest(SOLUTION)
    assert all(torch.equal(one[name], two[name]) for name in one)


# --- what a site answers --------------------------------------------------------------------------


def test_it_is_better_than_chance_and_its_answers_are_named(played):
    [row] = [row for row in played.rows() if row["round"] == 0]
    assert row["mean_test_accuracy_common"] > 0.6
    for exchange in played.of(0, EVALUATE):
        names = {"common", "tuned"} | ({"alone"} if DEALS[exchange.task.site].labelled else set())
        wanted = {f"{part}_{name}" for part in ("val", "test") for name in names}
        assert exchange.reply.evaluations.keys() == wanted | {"val", "test"}
        found = exchange.reply.evaluations
        assert found["test"] == found["test_tuned"] and found["val"] == found["val_tuned"]


def test_the_common_answer_by_hand(played):
    """Softmax of the head over the features times the site's mix."""
    features, found = build_features("hog", (1, 8, 8)), solution(played)
    for exchange in played.of(0, EVALUATE):
        data = site_data(played.experiment, exchange.task.site)
        [one] = predictors(played, exchange.task.site, "common").values()
        z = features.of(normalised(data, data.test)) @ found.weight.T + found.bias
        wanted = evaluation(
            reweighted(torch.softmax(z, 1), one.class_mix).float(), data.test_labels
        )
        assert exchange.reply.evaluations["test_common"].confusion == wanted.confusion


def test_the_answer_that_is_used_is_the_one_named(tmp_path):
    played = play(toy(OneRound(answer="common"), tmp_path, DEALS, **ONCE))
    assert all(GRID in e.task.models for e in played.seen if e.task.action == VOTE)
    assert solution(played).own_weight == 0
    for exchange in played.of(0, EVALUATE):
        found = exchange.reply.evaluations
        assert found["test"] == found["test_common"]


@pytest.mark.parametrize("answer", ["common", "tuned"])
def test_without_the_sites_mix_all_classes_are_equally_frequent(tmp_path, answer):
    """The head decides by itself, whatever classes the site has."""
    played = play(toy(OneRound(answer=answer, own_mix=False), tmp_path, DEALS, **ONCE))
    features, found = build_features("hog", (1, 8, 8)), solution(played)
    for exchange in played.of(0, EVALUATE):
        data = site_data(played.experiment, exchange.task.site)
        [one] = predictors(played, exchange.task.site).values()
        torch.testing.assert_close(one.class_mix, torch.full((10,), 0.1, dtype=torch.float64))
        if answer == "common":
            z = features.of(normalised(data, data.test)) @ found.weight.T + found.bias
            wanted = evaluation(torch.softmax(z, 1), data.test_labels)
            assert exchange.reply.evaluations["test"].confusion == wanted.confusion


def predictors(played, site, answer=""):
    task, context = played.at_the_end(site)
    return played.experiment.method.used(task, context, answer)


@pytest.mark.parametrize("answer", [None, "common", "alone"])
def test_the_model_to_be_used_answers_as_measured(played, answer):
    """To the bit, up to the sums of confidence."""
    for exchange in played.of(1, EVALUATE):
        data = site_data(played.experiment, exchange.task.site)
        if answer == "alone" and not len(data.labels):
            continue
        found = predictors(played, exchange.task.site, answer)
        networks = [
            (one.load_into(build_model(played.experiment.model, (1, 8, 8), 10)), one)
            for one in found.values()
        ]
        answers = answer_of(networks, data.test, partial(normalised, data))
        name = f"test_{answer}" if answer else "test"
        assert evaluation(answers, data.test_labels) == exchange.reply.evaluations[name]


# --- rounds, newcomers, resumed runs --------------------------------------------------------------


def test_a_second_round_changes_nothing_and_sends_no_sums(played):
    first, second, third = (row for row in played.rows())
    for row in (second, third):
        assert {k: v for k, v in row.items() if "accuracy" in k and k in first} == {
            k: v for k, v in first.items() if "accuracy" in k and k in row
        }
    assert [e.task.action for e in played.seen if e.task.round] == [EVALUATE] * 10
    assert len({str(row["mean_test_accuracy_tuned"]) for row in played.rows()}) == 1
    later = [e for e in played.seen if e.task.round]
    assert not any(e.down or e.incoming.payloads for e in later)  # they kept the solution


def test_every_site_is_asked_once_for_each(played):
    """They vote on each solution, those by guesses too, and on the weight of own images.

    On that before any guesses, which the own head makes, and once more where these changed it.
    Labels are few, so that those with other images are asked for sums of these too; they guess.
    """
    asked = Counter((e.task.action, e.task.site) for e in played.seen if not e.task.round)
    taken = int(solution(played).guessed)
    guesses = min(taken + 1, MOST_GUESSES)  # the last made none likelier
    times = {COUNT: 1, VOTE: 1 + guesses + 1 + bool(taken), EVALUATE: 1}
    wanted = Counter({(action, site): n for action, n in times.items() for site in range(5)})
    for site in (site for site, deal in enumerate(DEALS) if deal.unlabelled):
        wanted += Counter({(COUNT, site): 1, (GUESS, site): guesses})
    assert asked == wanted


@pytest.mark.parametrize("method", [HOG, OVER_NETWORK], ids=["hog", "network"])
def test_a_newcomers_sums_are_added(tmp_path, method, monkeypatch):
    from tests.server.test_joining import Late

    monkeypatch.setattr(FrozenNetwork, "enough_labels", 99.0)
    early, late = (
        play_in_one_store(toy(method, tmp_path, DEALS, name=name), partial(Late, comes=comes))
        for name, comes in (("early", {}), ("late", {3: 1, 2: 2}))
    )
    counted = [(t.round, t.site, asks_for_others(t)) for t, _ in late.seen if t.action == COUNT]
    comes = [(0, 0), (0, 1), (0, 4), (1, 3), (2, 2)]
    both = [(number, k, True) for number, k in comes if DEALS[k].unlabelled]
    assert sorted(counted) == sorted([*((*who, False) for who in comes), *both])
    voted = [(t.round, t.site) for t, _ in late.seen if t.action == VOTE and GRID in t.models]
    assert voted[-5:] == [(2, site) for site in range(5)]  # all of them, on the new sums
    assert early.newest(SOLUTION).keys() == late.newest(SOLUTION).keys()
    for name, tensor in late.newest(SOLUTION).items():
        torch.testing.assert_close(tensor, early.newest(SOLUTION)[name])


CUTS = [(0, COUNT, 2), (0, VOTE, 1), (0, VOTE, 5 + 3), (0, GUESS, 1), (0, EVALUATE, 2),
        (1, EVALUATE, 3)]  # fmt: skip


@pytest.mark.parametrize("cut", CUTS)
def test_a_run_cut_anywhere_resumes_to_the_same_bits(tmp_path, played, cut):
    assert_resumes(toy(HOG, tmp_path, DEALS), played, cut)


def assert_resumes(experiment, played, cut):
    with pytest.raises(Stop):
        play(experiment, cut_at(*cut))
    again = play(replace(experiment, runtime=replace(experiment.runtime, resume=True)))
    assert again.rows() == played.rows() and again.records() == played.records()


# --- sites that lack something --------------------------------------------------------------------


def test_nobody_has_labels(tmp_path):
    deals = (Deal(0, 9), Deal(0, 5))
    with pytest.raises(RunError, match=r"no site has a labelled image.*label images at") as found:
        play(toy(HOG, tmp_path, deals))
    assert "\n" not in str(found.value)


def test_nobody_sends_sums(tmp_path):
    def refuse(task, incoming):
        return None

    with pytest.raises(RunError, match="no site has sent sums") as found:
        play(toy(HOG, tmp_path, rounds__min_reply_share=0.0, rounds__deadline_s=1.0), refuse)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("deals", [
    (Deal(12, 0, 6, 6), Deal(0, 0, 0, 6)),              # a site without training images
    (Deal(12, 0, 0, 6), Deal(0, 3, 0, 6)),              # nobody has validation images
    (Deal(1, 0, 2, 3), Deal(0, 1, 2, 3)),               # an image each
    (Deal(1, 0, 0, 1),),                                # one image and nothing else
], ids=["without training images", "without validation", "an image each", "one image"])  # fmt: skip
def test_sites_that_lack_something_take_part(tmp_path, deals):
    played = play(toy(HOG, tmp_path, deals, **ONCE))
    assert not any(row["skipped"] for row in played.rows())
    assert len(played.of(0, EVALUATE)) == len(deals)
    if not any(deal.val for deal in deals):
        found = solution(played)  # one labelled image of one class for hundreds of features
        assert found.temperature == 2
        assert found.ridge == pytest.approx(found.classes.level(MOST_RIDGE))
        assert found.own_weight == 0


@pytest.mark.parametrize(
    ("counts", "usual"),
    [
        ([10, 30, 0], 2.0),  # 0.4 x 100 features / 20 images of each of two classes
        ([0, 2, 0], MOST_RIDGE),  # 0.4 x 100 / 2 = 20
        ([500, 500, 500], LEAST_RIDGE),  # 0.4 x 100 / 500 = 0.08
    ],
)
def test_the_fewer_labels_the_higher_the_usual_ridge_by_hand(counts, usual):
    """Of the candidates the nearest, by its logarithm."""
    ridge, place = divmod(int(log_prior(2.0, torch.tensor(counts), 100).argmax()), 6)
    assert RIDGES[ridge] == min(RIDGES, key=lambda of: abs(math.log(of / usual)))
    assert TEMPERATURES[place] == 2


def test_a_class_that_nobody_has_labelled_decides_nothing(tmp_path):
    """Before, such an image cost more the lower the temperature, and alone decided upon it."""
    found = []
    for extra in (0, 1):
        experiment = toy(
            OneRound(answer="common"), tmp_path / str(extra), (Deal(40, 0, 30, 6),), **ONCE
        )
        data = federation_of(experiment).dealt.site(0)
        seen, val = data.labels != 7, data.val_labels != 7
        labels = data.val_labels[val]
        images = data.val[val]
        if extra:
            labels, images = torch.cat([labels, torch.tensor([7])]), torch.cat([images, images[:1]])
        share = data.with_parts(
            labelled=Part(data.labelled[seen], data.labels[seen]), val=Part(images, labels)
        )
        found.append(solution(run_over(experiment, [share])))
    assert (found[0].temperature, found[0].ridge) == (found[1].temperature, found[1].ridge)


# --- other features -------------------------------------------------------------------------------


def test_filters_are_learned_first(tmp_path):
    played = play(toy(OneRound(features="patches"), tmp_path, DEALS, **ONCE))
    features = build_features("patches", (1, 8, 8))
    asked = [
        e.task.numbers["step"] for e in played.seen if e.task.action == LEARN and not e.task.site
    ]
    assert asked == list(range(features.exchanges()))
    assert not any(row["skipped"] for row in played.rows())
    assert {e.task.round for e in played.seen if e.task.action == LEARN} == {0}
    [row] = [row for row in played.rows() if row["round"] == 0]
    assert row["mean_test_accuracy_common"] > 0.4
    start, filters = features.state_dict(), played.newest(FILTERS)
    assert all(not torch.equal(filters[name], start[name]) for name in start)
    assert_measured_again(played)


def assert_measured_again(played):
    for exchange in played.of(1, EVALUATE):
        data = site_data(played.experiment, exchange.task.site)
        [one] = predictors(played, exchange.task.site).values()
        network = one.load_into(build_model(played.experiment.model, data.inputs, 10))
        answers = answer_of([(network, one)], data.test, partial(normalised, data))
        assert evaluation(answers, data.test_labels) == exchange.reply.evaluations["test"]


@pytest.mark.parametrize("model", [ResNet9Settings(width=2), MLPSettings()], ids=["conv", "linear"])
def test_features_of_a_frozen_network_are_those_of_w_0(tmp_path, model):
    """Without weights the config refuses it; w_0's own will do here. No byte travels for it."""
    deals = (*DEALS, Deal(10, 70, 40, 45))
    played = play(toy(OneRound(features="network"), tmp_path, deals, model=model, **ONCE))
    assert not any(row["skipped"] for row in played.rows())
    w_0 = played.w_0()
    assert all(torch.equal(played.newest(FILTERS)[name], of) for name, of in w_0.items())
    task, _ = played.at_the_end(0)
    assert task.models[FILTERS][0].digest == task.own.digest
    assert not any(task.own.digest in e.down for e in played.seen)
    assert_measured_again(played)


@pytest.fixture(scope="module")
def over_network(tmp_path_factory):
    return play(toy(OVER_NETWORK, tmp_path_factory.mktemp("network"), DEALS))


@pytest.mark.parametrize("cut", CUTS[:4])
def test_a_run_over_a_network_resumes_likewise(tmp_path, over_network, cut):
    assert_resumes(toy(OVER_NETWORK, tmp_path, DEALS), over_network, cut)


@pytest.mark.parametrize("few", [True, False])
def test_over_a_frozen_network_sums_and_heads_travel_rounded(tmp_path, monkeypatch, few):
    """Which changes what is elected and what is answered next to nothing; as few rows likewise."""
    if not few:
        monkeypatch.setattr("fedapp.methods.closed_form._contents.FEW_IMAGES", -1)
    over_network = play(toy(OVER_NETWORK, tmp_path / "rounded", DEALS))
    assert over_network.newest(FEW if few else ROUNDED, 0)
    monkeypatch.setattr(FrozenNetwork, "rounded", False)
    exact = play(toy(OVER_NETWORK, tmp_path, DEALS))
    came, whole = over_network.newest(SOLUTION), solution(exact)
    one = Solution.from_params(came, over_network.newest(DIRECTIONS))
    assert (one.temperature, one.own_weight) == (whole.temperature, whole.own_weight)
    assert one.ridge == pytest.approx(whole.ridge, rel=0.02)
    for name in ("common", "tuned", "alone"):
        right = (of.rows()[0][f"mean_test_accuracy_{name}"] for of in (over_network, exact))
        assert next(right) == pytest.approx(next(right), abs=0.05)


def test_over_an_encoder_a_site_sends_and_gets_little():
    """Of 1,280 features and 10 classes in a run in which sites guessed twice, in bytes."""
    network = build_model(MLPSettings(hidden="1280"), (1, 8, 8), 10)
    size = {role: max_bytes(schema) for role, schema in closed_schemas("network", network).items()}
    most = size[ROUNDED] + 2 * size[GUESSES] + 5 * size[VOTES]
    assert most < 1_450_000 and most + size[ROUNDED_OTHERS] < 2_700_000  # where labels are few
    less = most - size[ROUNDED] + size[FEW]
    assert less < 470_000 and less + size[ROUNDED_OTHERS] < 1_700_000
    assert size[DIRECTIONS] + 3 * size[GRID] + 5 * size[SOLUTION] < 800_000


# --- refused --------------------------------------------------------------------------------------


def refused(*overrides):
    given = dict(one.split("=") for one in ("method.preset=one_round", *overrides))
    with pytest.raises(ConfigError) as found:
        load_experiment("digits_demo", {k: int(v) if v.isdigit() else v for k, v in given.items()})
    lines = str(found.value).splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_a_frozen_network_without_weights_is_refused():
    says = refused("method.features=network")
    assert "`network` features need a trained network: set model.body=lite0" in says


def test_without_a_word_the_features_are_those_of_a_pretrained_network_and_the_record_says_it():
    encoder = {"model.name": "encoder", "model.body": "lite0"}

    def chosen(**more):
        return load_experiment("cifar10", {**encoder, **more}).method

    assert chosen(**{"method.preset": "one_round"}).features == "network"
    assert chosen(**{"method.preset": "recommended"}).closed == "network"
    assert (
        chosen(**{"method.preset": "one_round", "model.name": "encoder_bank"}).features == "network"
    )
    assert chosen(**{"method.preset": "one_round", "method.features": "both"}).features == "both"
    assert chosen(**{"method.preset": "prior_shift"}).closed == "none"
    untrained = load_experiment("cifar10", {"method.preset": "one_round"})
    assert untrained.method.features == "auto"
    again = load_experiment("cifar10", {**encoder, "method.preset": "one_round"})
    assert from_plain(to_plain(again), "a record").method.features == "network"


def test_unknown_features_are_refused():
    assert "no such features" in refused("method.features=hogg")


@pytest.mark.parametrize(("inputs", "says"), [
    ((20,), "takes images of 1 to 4 channels; take auto or plain"),
    ((1, 4, 4), "takes images of 8 to 1024 pixels a side"),
    ((1, 1, 1), "takes images of 8 to 1024 pixels a side"),
    ((5, 9, 9), "takes images of 1 to 4 channels"),
])  # fmt: skip
@pytest.mark.parametrize("features", ["hog", "patches", "both"])
def test_inputs_that_do_not_fit_are_refused_by_name(inputs, says, features):
    [one] = OneRound(features=features).incompatibilities(Conditions(inputs=inputs))
    assert one.setting == "data.image_size" and says in one.reason


def test_inputs_that_fit():
    assert OneRound().incompatibilities(Conditions(inputs=(3, 32, 32))) == []
    assert OneRound(features="network").incompatibilities(Conditions(inputs=(7,))) == []


def test_without_validation_a_table_has_the_defaults_of_its_features(tmp_path):
    """The temperature is 1, and own patients count twice; features of images have 2 and once."""
    over = {"data.root": str(written(tmp_path)), "split.val_share": 0.0}
    over |= {"runtime.out": str(tmp_path / "runs"), "data.download": False}
    found = run_loopback(load_experiment("heart", over))[0]
    assert (found["closed_temperature"], found["closed_own_weight"]) == (1.0, 1.0)
    assert own_weights(Plain)[1:] == own_weights(Hog)[1:] and own_weights(Hog)[0] == 0.0
    best = int(log_prior(Hog.default_temperature, torch.ones(2), 10).argmax())
    assert TEMPERATURES[best % len(TEMPERATURES)] == 2.0


def test_sites_vote_on_the_weights_among_which_the_server_chooses(tmp_path, monkeypatch):
    asked, head = set(), Solution.head
    monkeypatch.setattr(
        Solution, "head", lambda self, x, y, weight: asked.add(weight) or head(self, x, y, weight)
    )
    over = {"data.root": str(written(tmp_path)), "runtime.out": str(tmp_path / "runs")}
    run_loopback(load_experiment("heart", over | {"split.val_share": 0.2, "data.download": False}))
    assert asked == {1.0, 3.0, 10.0, 30.0, 100.0}
