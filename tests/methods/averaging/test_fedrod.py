"""FedRoD: a common network for equally frequent classes, and a head at home on its features."""

import math
from dataclasses import replace

import pytest
import torch

from fedapp.learn.networks import build_model
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.averaging.fedrod import FedRoD, rod_loss
from tests.methods.conformance import (
    MEASURE,
    PIXELS,
    START,
    TASK,
    UNEQUAL,
    assert_beside_never_travels,
    assert_close,
    assert_shared_is_mean,
    beside_of,
    context,
    data_of,
    pixels,
    play,
    site_data,
    toy,
)

HEAD = frozenset({"head.weight", "head.bias"})
ZERO = {name: torch.zeros_like(START[name]) for name in HEAD}


def embedded(params, images):
    """Features in training mode, of a network with these tensors."""
    model = build_model(PIXELS, (1, 8, 8), 3)
    model.load_state_dict(params)
    model.train()
    scaled = (images.float() / 255 - 0.5) / 0.25
    with torch.no_grad():
        return model.embed(model.trunk(scaled)), model(scaled)


def test_the_loss_by_hand():
    common = torch.tensor([[0.5, 0.5]], dtype=torch.float64).log()
    personal = torch.tensor([[3.0, 1.0]], dtype=torch.float64).log()
    shift = torch.tensor([0.8, 0.2], dtype=torch.float64).log()
    found = rod_loss(common, personal, torch.tensor([1]), shift)
    assert found.item() == pytest.approx(-math.log(0.2) - math.log(0.25))


def test_each_loss_reaches_its_own_head_alone():
    common = torch.zeros(1, 2, requires_grad=True)
    personal = torch.tensor([[math.log(3.0), 0.0]], requires_grad=True)
    shift = torch.tensor([0.8, 0.2]).log()
    rod_loss(common, personal, torch.tensor([1]), shift).backward()
    torch.testing.assert_close(common.grad, torch.tensor([[0.8, -0.8]]))
    torch.testing.assert_close(personal.grad, torch.tensor([[0.75, -0.75]]))


def test_with_equally_frequent_classes_the_common_network_is_fedavgs():
    """The correction is the same for every class, and the softmax does not see it."""
    site = context(data_of(labelled=6), START, memory=ZERO, local_epochs=3, momentum=0.9)
    plain = FedAvg().site_round(TASK, site).params
    found = FedRoD().site_round(TASK, site)
    assert_close(found.params, plain)
    assert found.memory.keys() == HEAD and found.memory["head.weight"].abs().max() > 0


def test_with_unequal_classes_the_common_logits_are_corrected():
    """Labels 0, 1, 2, 0 and one image spread over three classes: 7, 4, 4 of 15."""
    data = data_of(labelled=4)
    found = FedRoD().site_round(TASK, context(data, START, memory=ZERO)).params
    plain = FedAvg().site_round(TASK, context(data, START)).params
    z, logits = embedded(START, data.labelled)
    mix = torch.tensor([7.0, 4.0, 4.0]) / 15
    targets = torch.nn.functional.one_hot(data.labels, 3)
    for params, shift in ((found, mix.log()), (plain, torch.zeros(3))):
        error = torch.softmax(logits + shift, dim=1) - targets
        by_hand = START["head.weight"] - 0.1 * error.T @ z / 4
        torch.testing.assert_close(params["head.weight"], by_hand, rtol=1e-4, atol=1e-6)


KEPT = {name: torch.full_like(START[name], 0.3) for name in HEAD}
KEPT["head.weight"][0] = -0.2


@pytest.mark.parametrize("before", [ZERO, KEPT])
def test_one_step_of_the_personal_head_by_hand(before):
    """From what the site remembers; the common logits stand below it."""
    data = data_of(labelled=4)
    site = context(data, START, memory=before)
    found = FedRoD().site_round(TASK, site).memory
    z, logits = embedded(START, data.labelled)
    answers = torch.softmax(logits + z @ before["head.weight"].T + before["head.bias"], dim=1)
    error = (answers - torch.nn.functional.one_hot(data.labels, 3)) / 4
    wanted = {
        "head.weight": before["head.weight"] - 0.1 * error.T @ z,
        "head.bias": before["head.bias"] - 0.1 * error.sum(0),
    }
    assert_close(found, wanted)


def test_the_personal_head_starts_from_zero():
    start = FedRoD().memory(build_model(PIXELS, (1, 8, 8), 3), START)
    assert start.keys() == ZERO.keys() and all(not tensor.any() for tensor in start.values())


def test_before_it_learns_the_personal_answer_is_the_common_one():
    site = context(data_of(labelled=0), START, memory=ZERO)
    assert FedRoD().site_round(TASK, site).params is None
    results = FedRoD().site_round(MEASURE, site).evaluations
    assert results["test"] == results["test_tuned"] == results["test_common"]


def test_the_personal_answer_is_of_the_sum_of_both_heads():
    site = context(data_of(), START, memory={n: torch.full_like(START[n], 0.3) for n in HEAD})
    results = FedRoD().site_round(replace(MEASURE, private="c" * 64), site).evaluations
    common, *_, tuned = site.measured
    for name, tensor in START.items():
        assert torch.equal(common[name], tensor)
        assert torch.equal(tuned[name], tensor + 0.3 if name in HEAD else tensor)
    assert results["val"] == results["val_tuned"]
    assert (
        FedRoD(answer="common").site_round(MEASURE, site).evaluations["val"]
        == (results["val_common"])
    )


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    changes = {"training__batch_size": 64, "model__dropout": 0.0, "training__warmup_rounds": 1}
    return play(toy(FedRoD(), tmp_path_factory.mktemp("fedrod"), **changes))


def test_the_personal_head_never_travels(played):
    assert_beside_never_travels(played, HEAD)


def test_the_common_network_is_averaged_by_labelled_images(played):
    assert_shared_is_mean(played, [deal.labelled for deal in UNEQUAL])


def test_a_site_answers_with_its_own_network_and_both_heads(played):
    """Counted image by image from what it sent and what it kept."""
    for exchange in played.of(2, "evaluate"):
        [last] = [e for e in played.of(2, "train") if e.task.site == exchange.task.site]
        kept = beside_of(last)
        data = site_data(played.experiment, exchange.task.site)
        model = build_model(played.experiment.model, (1, 8, 8), 10)
        model.load_state_dict(last.upload)
        model.eval()
        with torch.no_grad():
            z = model.embed(model.trunk(pixels(played.experiment, data.test)))
            own = z @ kept["head.weight"].T + kept["head.bias"]
            right = ((model.head(z) + own).argmax(1) == data.test_labels).sum()
        assert exchange.reply.evaluations["test"].correct == int(right)
