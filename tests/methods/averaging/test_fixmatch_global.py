"""FixMatch by the received model: labels that are made once per task."""

import pytest
import torch

from fedapp.learn.networks import initial_params
from fedapp.methods.averaging import fixmatch_global
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.averaging.fixmatch_global import FixMatchGlobal, taught
from fedapp.protocol.messages import ModelRef, Task
from tests.methods.conformance import PIXELS, assert_same, context, data_of

SERVER = ModelRef(-2, 1, "a" * 64)
TASK = Task(0, 1, "train", ModelRef(0, 1, "b" * 64), {"server": (SERVER,)})
WARM_UP = Task(0, 0, "warmup", TASK.own, TASK.models)
START = initial_params(PIXELS, (1, 8, 8), 3, seed=0)


@pytest.fixture
def given(monkeypatch):
    """Labels and what counts, of every task."""
    found = []

    def note(work, weak, strong, labels, sure, weight):
        found.append((labels, sure))
        return taught(work, weak, strong, labels, sure, weight)

    monkeypatch.setattr(fixmatch_global, "taught", note)
    return found


def test_labels_are_what_the_received_model_says_of_the_images_as_they_are(given):
    site = context(data_of(labelled=4, unlabelled=9), START, local_epochs=5)
    site.model.load_state_dict(START)
    answers = torch.softmax(site.model.eval()(site.normalise(site.data.unlabelled)), dim=1)
    middle = answers.max(1).values.median().item()
    before = [t.clone() for t in answers.max(1)]
    FixMatchGlobal(confidence=middle).site_round(TASK, site)
    [(labels, sure)] = given  # once, though five epochs changed the model
    assert torch.equal(labels, before[1]) and torch.equal(sure, before[0] >= middle)
    assert 0 < sure.sum() < 9


def test_where_nothing_is_sure_it_is_as_at_weight_zero(given):
    """Either way the unlabelled images teach nothing but batch norm."""
    data = data_of(labelled=4, unlabelled=9)
    unsure = FixMatchGlobal(confidence=1.0).site_round(TASK, context(data, START)).params
    [(_, sure)] = given
    light = FixMatchGlobal(confidence=0.0, unlabelled_weight=0.0)
    assert not sure.any()
    assert_same(unsure, light.site_round(TASK, context(data, START)).params)
    taught_something = FixMatchGlobal(confidence=0.0).site_round(TASK, context(data, START)).params
    assert not torch.equal(unsure["head.weight"], taught_something["head.weight"])


@pytest.mark.parametrize(("labelled", "unlabelled"), [(4, 0), (0, 5), (1, 0), (0, 1)])
def test_a_site_without_either_part_learns_from_the_other(labelled, unlabelled):
    method = FixMatchGlobal(confidence=0.0)
    report = method.site_round(TASK, context(data_of(labelled, unlabelled), START))
    assert not torch.equal(report.params["head.weight"], START["head.weight"])


def test_the_warm_up_is_fedavgs(given):
    training = {"warmup_epochs": 4, "warmup_rounds": 4}
    one, two = (
        method.site_round(WARM_UP, context(data_of(4, 9), START, **training)).params
        for method in (FixMatchGlobal(), FedAvg())
    )
    assert_same(one, two)
    assert not given


def test_two_views_for_each_of_a_batch():
    assert FixMatchGlobal().images_per_step(8, data_of()) == 16
