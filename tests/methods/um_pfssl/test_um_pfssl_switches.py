"""UM-pFSSL with a part switched off: without aggregation, without pseudo-labels, without both."""

from dataclasses import replace

import pytest
import torch

from fedapp.learn.params import weighted_mean
from fedapp.methods.averaging.local_only import LocalOnly
from fedapp.methods.um_pfssl.method import UmPfssl
from tests.methods.conformance import assert_close, draw_alike, play, toy
from tests.methods.um_pfssl.test_um_pfssl_site import (
    METHOD,
    assert_equal,
    context,
    data_of,
    model_of,
    score,
    train_task,
    trained_on,
)

NO_MEAN = replace(METHOD, aggregation=False)
NO_LABELS = replace(METHOD, pseudo_labels=False)


def test_without_aggregation_a_site_trains_its_own_model_on_the_helpers_labels():
    data, plain, alone = data_of(), context(data_of()), context(data_of())
    METHOD.site_round(train_task(), plain)
    report = NO_MEAN.site_round(train_task(), alone)
    images, targets, params = trained_on(alone)
    assert_equal(params, model_of(0))
    with_mean = trained_on(plain)
    assert torch.equal(images, with_mean[0]) and torch.equal(targets, with_mean[1])
    assert {h.model.site for h in report.helpers} == {1, 2}
    assert report.metrics["pseudo_total"] == len(data.unlabelled)


def test_without_aggregation_w_0_learns_from_helpers_too():
    site = context(data_of(labelled=0))
    NO_MEAN.site_round(train_task(own_version=0), site)
    images, _, params = trained_on(site)
    assert_equal(params, model_of(0))
    assert len(images) == 6


def test_without_pseudo_labels_a_site_trains_the_mean_on_its_labels_alone():
    data = data_of()
    site = context(data)
    report = NO_LABELS.site_round(train_task(), site)
    images, targets, params = trained_on(site)
    assert torch.equal(images, data.labelled)
    torch.testing.assert_close(targets, torch.eye(3)[data.labels])
    weights = {k: score(k, data)[0] for k in (0, 1, 2)}
    assert_equal(params, weighted_mean([(w, model_of(k)) for k, w in weights.items()], model_of(0)))
    assert "pseudo_total" not in report.metrics and {h.model.site for h in report.helpers} == {1, 2}


def test_without_pseudo_labels_a_site_without_labels_takes_the_mean():
    data = data_of(labelled=0)
    site = context(data)
    report = NO_LABELS.site_round(train_task(), site)
    assert site.seen == [] and "loss" not in report.metrics
    weights = {k: score(k, data)[0] for k in (0, 1, 2)}
    mean = weighted_mean([(w, model_of(k)) for k, w in weights.items()], model_of(0))
    assert_equal(report.params, mean)


@pytest.mark.parametrize("method", [METHOD, NO_MEAN, NO_LABELS])
def test_searching_is_the_same_with_and_without(method):
    site = context(data_of())
    report = method.site_round(replace(train_task(), action="search"), site)
    assert report.params is None and {h.model.site for h in report.helpers} == {1, 2}


def test_without_both_it_is_local_only(tmp_path, monkeypatch):
    """Helpers are still found and scored, yet no site learns anything from them.

    Where both draw alike; the loss is written in two ways, so bits may differ.
    """
    draw_alike(monkeypatch)
    method = UmPfssl(
        helper_list_size=2, num_replaced=1, mc_samples=2, aggregation=False, pseudo_labels=False
    )
    alone = play(toy(LocalOnly(), tmp_path, name="local_only", rounds__num_rounds=3))
    found = play(toy(method, tmp_path, name="um_pfssl", rounds__num_rounds=3))
    for number, action in ((0, "warmup"), (1, "train"), (3, "train")):
        uploads = zip(found.of(number, action), alone.of(number, action), strict=True)
        for one, two in uploads:
            assert_close(one.upload, two.upload, atol=1e-4)
    for one, two in zip(found.rows(), alone.rows(), strict=True):
        assert one["mean_test_accuracy"] == two["mean_test_accuracy"]
    assert found.summary["models_sent"] > alone.summary["models_sent"] == 0
    both = UmPfssl(helper_list_size=2, num_replaced=1, mc_samples=2)
    whole = play(toy(both, tmp_path, name="whole", rounds__num_rounds=3))
    assert whole.records()["pool"] != alone.records()["pool"]
