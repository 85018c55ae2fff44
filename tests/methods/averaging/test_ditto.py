"""Ditto: beside FedAvg's model a model of each site's own, pulled to the one it received."""

import math
from dataclasses import replace

import pytest
import torch

from fedapp.learn import optimisers
from fedapp.learn.networks import build_model, initial_params
from fedapp.methods.averaging.ditto import Ditto
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.protocol.messages import ModelRef, Task
from tests.methods.conformance import (
    PIXELS,
    assert_beside_never_travels,
    assert_same,
    beside_of,
    context,
    correct_by_hand,
    data_of,
    play,
    site_data,
    toy,
    trainable,
)

SERVER = ModelRef(-2, 1, "a" * 64)
TASK = Task(0, 1, "train", ModelRef(0, 1, "b" * 64), {"server": (SERVER,)}, private="c" * 64)
MEASURE = replace(TASK, action="evaluate")
START, OWN = (initial_params(PIXELS, (1, 8, 8), 3, seed=seed) for seed in (0, 1))
WEIGHTS = trainable(build_model(PIXELS, (1, 8, 8), 3))


def own(attachment, w_t=START, **training):
    """v_k after a task that began with v_k = OWN."""
    site = context(data_of(labelled=6), w_t, memory=OWN, **training)
    return Ditto(attachment=attachment).site_round(TASK, site).memory


def test_the_common_model_is_fedavgs_bit_for_bit(tmp_path):
    plain = play(toy(FedAvg(), tmp_path, name="fedavg"))
    ditto = play(toy(Ditto(), tmp_path, name="ditto"))
    assert ditto.records()["pool"] == plain.records()["pool"]
    for mine, theirs in zip(ditto.of(2, "evaluate"), plain.of(2, "evaluate"), strict=True):
        found, wanted = mine.reply.evaluations, theirs.reply.evaluations
        assert found["test_common"] == wanted["test_common"]


def test_without_a_pull_it_is_training_alone_bit_for_bit():
    """As FedAvg would train the site's own model; the server's plays no part."""
    training = {"local_epochs": 3, "momentum": 0.9, "batch_size": 2}
    alone = FedAvg().site_round(TASK, context(data_of(labelled=6), OWN, **training)).params
    assert_same(own(0.0, **training), alone)
    assert_same(own(0.0, w_t=OWN, **training), alone)


@pytest.fixture
def unlimited(monkeypatch):
    """A strong pull alone is a longer gradient than is allowed."""
    monkeypatch.setattr(optimisers, "MAX_GRADIENT_NORM", math.inf)


def test_one_step_by_hand(unlimited):
    """v - rate (g + lambda (v - w)): the pull is the whole difference to a step without it."""
    rate, pull = 0.1, 4.0
    plain, pulled = own(0.0), own(pull)
    for name in WEIGHTS:
        difference = rate * pull * (OWN[name] - START[name])
        torch.testing.assert_close(plain[name] - pulled[name], difference, rtol=1e-3, atol=1e-6)


def test_statistics_of_batch_norm_are_its_own_and_are_not_pulled():
    plain, pulled = own(0.0), own(5.0)
    for name, tensor in plain.items():
        if "running" in name:
            assert torch.equal(pulled[name], tensor)


def test_a_site_without_labels_has_the_common_answer():
    site = context(data_of(labelled=0), START, memory=OWN)
    assert Ditto().site_round(TASK, site).memory is None
    results = Ditto().site_round(replace(MEASURE, private=""), site).evaluations
    assert results["test"] == results["test_tuned"] == results["test_common"]


def test_a_site_answers_with_its_own_model_unless_told_otherwise():
    for answer, wanted in (("tuned", OWN), ("common", START)):
        site = context(data_of(), START, memory=OWN)
        results = Ditto(answer=answer).site_round(MEASURE, site).evaluations
        assert_same(site.measured[0], START)
        assert_same(site.measured[-1], OWN)
        assert results["test"] == results[f"test_{answer}"]
        site.model.load_state_dict(wanted)
        assert results["val"] == site.evaluate("val")["val"]


def test_the_own_model_never_travels_and_is_what_is_measured(tmp_path):
    played = play(toy(Ditto(), tmp_path, training__warmup_rounds=1))
    assert_beside_never_travels(played, frozenset(played.w_0()))
    for exchange in played.of(2, "evaluate"):
        [last] = [e for e in played.of(2, "train") if e.task.site == exchange.task.site]
        data = site_data(played.experiment, exchange.task.site)
        right = correct_by_hand(played.experiment, beside_of(last), data.test, data.test_labels)
        assert exchange.reply.evaluations["test"].correct == right
