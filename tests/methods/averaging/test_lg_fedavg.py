"""LG-FedAvg: every site has a body of its own; the head is averaged (as in the paper)."""

import pytest
import torch

from fedapp.learn.networks import build_model
from fedapp.learn.networks.resnet9 import ResNet9Settings
from fedapp.methods.averaging.lg_fedavg import LgFedAvg
from tests.methods.conformance import (
    UNEQUAL,
    assert_descent_with_private_by_hand,
    assert_measured_by_hand,
    assert_private_never_travels,
    assert_shared_is_mean,
    play,
    toy,
)

HEAD = {"head.weight", "head.bias"}
BODY = frozenset(build_model(ResNet9Settings(width=2), (1, 8, 8), 10).state_dict()) - HEAD


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """One batch an epoch and no dropout, so that it can be done by hand."""
    changes = {"training__batch_size": 64, "training__local_epochs": 2, "model__dropout": 0.0}
    return play(toy(LgFedAvg(), tmp_path_factory.mktemp("lg"), **changes))


def test_all_but_the_head_is_kept():
    assert LgFedAvg().kept_private(build_model(ResNet9Settings(width=2), (1, 8, 8), 10)) == BODY
    assert len(BODY) == 8 + 40  # convolutions; batch norms


def test_no_body_travels_in_either_direction(played):
    assert_private_never_travels(played, BODY)


def test_a_head_is_all_that_is_sent(played):
    for exchange in played.seen:
        for blob in (*exchange.down.values(), *exchange.incoming.payloads.values()):
            assert len(blob) < 1000 < len(exchange.private)


def test_the_head_is_averaged_by_numbers_of_images(played):
    assert_shared_is_mean(played, [deal.labelled for deal in UNEQUAL])


def test_a_site_learns_from_the_mean_head_and_its_own_body(played):
    assert_descent_with_private_by_hand(played)


def test_a_site_measures_the_mean_head_with_its_own_body(played):
    assert_measured_by_hand(played)


def test_bodies_grow_apart(played):
    bodies = [played.private(e.reply.private) for e in played.of(2, "train")]
    for name in ("stem.conv.weight", "res2.1.conv.weight", "stem.norm.running_var"):
        assert not torch.equal(bodies[0][name], bodies[1][name])
