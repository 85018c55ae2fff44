"""UM-pFSSL at a site: what is averaged, with which weights, what is trained on what."""

from dataclasses import dataclass, replace

import pytest
import torch

from fedapp.core.cache import Cache
from fedapp.core.rng import seeded
from fedapp.core.settings import TrainSettings
from fedapp.data.sites import Audit
from fedapp.learn.metrics import predict
from fedapp.learn.networks import build_model, initial_params
from fedapp.learn.networks.resnet9 import ResNet9Settings
from fedapp.learn.params import weighted_mean
from fedapp.learn.uncertainty import mc_probabilities
from fedapp.methods.base import SiteContext
from fedapp.methods.um_pfssl.method import UmPfssl
from fedapp.methods.um_pfssl.relation import certainty, least_uncertain, most_informative, relation
from fedapp.protocol.messages import ModelRef, Task
from tests.methods import conformance

CPU = torch.device("cpu")
SETTINGS = ResNet9Settings(width=2)
PASSES = 3
METHOD = UmPfssl(helper_list_size=3, num_replaced=1, mc_samples=PASSES)


def ref(site, version=1):
    return ModelRef(site, version, f"{site:032x}{version:032x}")


def model_of(site):
    """Another network for every site, with statistics that differ too."""
    params = initial_params(SETTINGS, (1, 8, 8), 3, seed=site)
    stream = torch.Generator().manual_seed(site)
    for name, tensor in params.items():
        if name.endswith("running_mean"):
            tensor.copy_(torch.randn(tensor.shape, generator=stream))
        elif name.endswith("num_batches_tracked"):
            tensor.fill_(site)
        elif name == "head.weight":
            tensor.mul_(3)
    return params


def data_of(labelled=4, unlabelled=6):
    audit = Audit(torch.arange(unlabelled) % 3)
    return replace(conformance.data_of(labelled, unlabelled), audit=audit)


@dataclass(frozen=True)
class Spy(SiteContext):
    """Notes what `fit` is given; training itself is tested elsewhere."""

    seen: list = None

    def fit(self, images, targets, labelled, epochs, round_number):
        assert labelled == len(self.data.labels)
        params = {n: t.clone() for n, t in self.model.state_dict().items()}
        self.seen.append((images, targets, params))
        return 0.5


def context(data, scores=None, contents=model_of):
    return Spy(
        data=data,
        model=build_model(SETTINGS, (1, 8, 8), 3),
        contents=lambda r: contents(r.site),
        kept={},
        scores=scores or Cache(2**20),
        training=TrainSettings(),
        seed=5,
        device=CPU,
        seen=[],
    )


def score(site, data):
    """Corr and MC probabilities of a peer's model, from the formulas, without the method."""
    model = build_model(SETTINGS, (1, 8, 8), 3)
    model.load_state_dict(model_of(site))

    def scale(x):
        return (x.float() / 255 - 0.5) / 0.25

    with seeded(CPU, 5, "score", 0, ref(site).digest):
        rows = mc_probabilities(model, data.unlabelled, PASSES, scale)
    right = predict(model, data.labelled, scale).argmax(1) == data.labels
    accuracy = right.double().mean().item() if len(data.labels) else None
    sure = certainty(rows, "published") if len(data.unlabelled) else None
    return relation(data.mu, sure, accuracy, "both"), rows


def train_task(own_version=1, helpers=(1,), newcomers=(2,)):
    models = {"helpers": tuple(map(ref, helpers)), "newcomers": tuple(map(ref, newcomers))}
    return Task(0, 1, "train", ref(0, own_version), models)


def trained_on(site):
    [(images_, targets, params)] = site.seen
    return images_, targets, params


def assert_equal(params, expected):
    for name, tensor in expected.items():
        torch.testing.assert_close(params[name], tensor, msg=name)


@pytest.mark.parametrize("budget", [2**20, 0])
def test_a_site_with_both_kinds_trains_the_weighted_mean_on_labels_and_surest_answers(budget):
    data = data_of()
    site = context(data, Cache(budget))
    report = METHOD.site_round(train_task(), site)
    own, first, second = (score(k, data) for k in (0, 1, 2))

    mean = weighted_mean(
        [(own[0], model_of(0)), (first[0], model_of(1)), (second[0], model_of(2))], model_of(0)
    )
    seen_images, seen_targets, params = trained_on(site)
    assert_equal(params, mean)
    order = sorted([(1, first), (2, second)], key=lambda h: -h[1][0])
    soft, _ = least_uncertain([own[1], *(h[1][1] for h in order)])
    assert torch.equal(seen_images, torch.cat([data.labelled, data.unlabelled]))
    torch.testing.assert_close(seen_targets[:4], torch.eye(3)[data.labels])
    torch.testing.assert_close(seen_targets[4:], soft)

    wrong = (soft.argmax(1) != torch.arange(6) % 3).sum().item()
    assert (report.metrics["pseudo_wrong"], report.metrics["pseudo_total"]) == (wrong, 6)
    assert [h.model.site for h in report.helpers] == [k for k, _ in order]
    for helper in report.helpers:
        assert helper.score == pytest.approx({1: first, 2: second}[helper.model.site][0])
    assert report.evaluations.keys() == {"test_before", "test", "val"}


@pytest.mark.parametrize(("labelled", "unlabelled"), [(4, 0), (0, 6)], ids=["mu 1", "mu 0"])
def test_at_the_ends_of_mu_one_kind_of_image_weighs_and_trains(labelled, unlabelled):
    data = data_of(labelled, unlabelled)
    site = context(data)
    METHOD.site_round(train_task(), site)
    seen_images, _, params = trained_on(site)
    assert torch.equal(seen_images, data.labelled if labelled else data.unlabelled)
    weights = {k: score(k, data)[0] for k in (0, 1, 2)}
    assert_equal(params, weighted_mean([(w, model_of(k)) for k, w in weights.items()], model_of(0)))


def test_w_0_has_no_vote_beside_helpers():
    data = data_of(labelled=0)
    site = context(data)
    METHOD.site_round(train_task(own_version=0, newcomers=()), site)
    _, targets, params = trained_on(site)
    floats = {n: t for n, t in model_of(1).items() if t.is_floating_point()}
    assert_equal(params, floats)
    torch.testing.assert_close(targets, score(1, data)[1])


def test_unrelated_helpers_are_still_better_than_w_0():
    """Mutual information of a single image is 0 for every helper: the plain mean, not w_0."""
    data = data_of(labelled=0, unlabelled=1)
    site = context(data)
    method = replace(METHOD, corr_variant="mutual_information")
    method.site_round(train_task(own_version=0, helpers=(1, 2), newcomers=()), site)
    mean = weighted_mean([(1.0, model_of(1)), (1.0, model_of(2))], model_of(0))
    assert_equal(trained_on(site)[2], mean)


def test_the_label_variant_says_whose_answer_is_the_pseudo_label():
    data = data_of(labelled=0, unlabelled=40)
    helpers = sorted((score(peer, data) for peer in (1, 2)), key=lambda found: -found[0])
    answers = [rows for _, rows in helpers]
    expected = {
        "published": least_uncertain(answers)[0],
        "mutual_information": most_informative(answers)[0],
    }
    assert not torch.equal(*expected.values())
    for variant, soft in expected.items():
        site = context(data)
        method = replace(METHOD, label_variant=variant)
        method.site_round(train_task(own_version=0, helpers=(1, 2), newcomers=()), site)
        torch.testing.assert_close(trained_on(site)[1], soft)


def test_a_site_without_training_images_takes_the_mean_and_does_not_train():
    site = context(data_of(labelled=0, unlabelled=0))
    report = METHOD.site_round(train_task(own_version=0), site)
    assert site.seen == [] and "loss" not in report.metrics
    mean = weighted_mean([(1.0, model_of(1)), (1.0, model_of(2))], model_of(0))
    assert_equal(report.params, mean)


def test_a_site_with_nothing_to_learn_from_stays_as_it_is():
    site = context(data_of(labelled=0, unlabelled=0))
    report = METHOD.site_round(train_task(own_version=0, helpers=(), newcomers=()), site)
    assert report.params is None and report.evaluations == {}


def test_no_labels_and_no_helpers_at_version_0_is_no_ground_for_pseudo_labels():
    site = context(data_of(labelled=0))
    METHOD.site_round(train_task(own_version=0, helpers=(), newcomers=()), site)
    assert site.seen == []


def test_searching_ranks_and_admits_without_training():
    data = data_of()
    site = context(data)
    report = METHOD.site_round(replace(train_task(), action="search"), site)
    assert report.params is None and site.seen == []
    assert {h.model.site for h in report.helpers} == {1, 2}


def broken(site):
    """Finite weights that overflow: site 2's head answers NaN."""
    params = model_of(site)
    if site == 2:
        params["head.weight"].fill_(3e38)
    return params


def test_a_model_that_answers_nan_is_left_out_everywhere():
    data = data_of()
    site = context(data, contents=broken)
    report = METHOD.site_round(train_task(), site)
    assert [h.model.site for h in report.helpers] == [1]
    _, targets, params = trained_on(site)
    assert targets.isfinite().all()
    assert all(t.isfinite().all() for t in params.values())
    assert_equal(
        params,
        weighted_mean([(score(k, data)[0], model_of(k)) for k in (0, 1)], model_of(0)),
    )


def test_recalibration_changes_the_statistics_and_nothing_else():
    data = data_of()
    plain, recalibrated = context(data), context(data)
    METHOD.site_round(train_task(), plain)
    replace(METHOD, recalibrate=True).site_round(train_task(), recalibrated)
    for name, tensor in trained_on(plain)[2].items():
        same = torch.equal(tensor, trained_on(recalibrated)[2][name])
        assert same == ("running" not in name), name


def test_scores_are_computed_once_per_content():
    site = context(data_of())
    METHOD.site_round(train_task(), site)
    assert site.scores.misses == 3  # itself, the helper, the newcomer
    METHOD.site_round(replace(train_task(helpers=(1, 2), newcomers=()), round=2), site)
    assert site.scores.misses == 3
