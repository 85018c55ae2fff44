"""FixMatch by the received model: labels that are made once per task."""

import pytest
import torch

from fedapp.methods.averaging import fixmatch_global
from fedapp.methods.averaging.fixmatch_global import FixMatchGlobal, fixed_label_steps
from tests.methods.conformance import START, TASK, assert_same, context, data_of


@pytest.fixture
def given(monkeypatch):
    """Labels and what counts, of every task."""
    found = []

    def note(work, weak, strong, labels, sure, weight):
        found.append((labels, sure))
        return fixed_label_steps(work, weak, strong, labels, sure, weight)

    monkeypatch.setattr(fixmatch_global, "fixed_label_steps", note)
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
