"""FedPer: every site has a head of its own; the body is FedAvg's."""

import pytest
import torch

from fedapp.learn.networks import build_model
from fedapp.learn.networks.resnet9 import ResNet9Settings
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.averaging.fedper import FedPer
from fedapp.methods.averaging.lg_fedavg import LgFedAvg
from tests.methods.conformance import (
    UNEQUAL,
    Deal,
    assert_descent_with_private_by_hand,
    assert_measured_by_hand,
    assert_private_never_travels,
    assert_shared_is_mean,
    play,
    toy,
)

HEAD = frozenset({"head.weight", "head.bias"})


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """One batch an epoch and no dropout, so that it can be done by hand."""
    changes = {"training__batch_size": 64, "training__local_epochs": 2, "model__dropout": 0.0}
    return play(toy(FedPer(), tmp_path_factory.mktemp("fedper"), **changes))


def test_the_head_is_kept_and_nothing_else():
    assert FedPer().kept_private(build_model(ResNet9Settings(width=2), (1, 8, 8), 10)) == HEAD


def test_what_fedper_keeps_lg_fedavg_shares():
    network = build_model(ResNet9Settings(width=2), (3, 8, 8), 9)
    kept, other = FedPer().kept_private(network), LgFedAvg().kept_private(network)
    assert kept | other == network.state_dict().keys() and not kept & other


def test_no_head_travels_in_either_direction(played):
    assert_private_never_travels(played, HEAD)


def test_the_body_is_averaged_by_numbers_of_images_batch_norms_included(played):
    assert_shared_is_mean(played, [deal.labelled for deal in UNEQUAL])
    [one, *_] = played.of(1, "train")
    assert "stem.norm.running_mean" in one.upload


def test_a_site_learns_from_the_mean_body_and_its_own_head(played):
    assert_descent_with_private_by_hand(played)


def test_a_site_measures_the_mean_body_with_its_own_head(played):
    assert_measured_by_hand(played)


def test_heads_start_alike_and_differ_once_learned(played):
    assert all(e.task.private == "" for e in played.of(0, "warmup"))
    heads = [played.private(e.reply.private)["head.weight"] for e in played.of(2, "train")]
    assert not torch.equal(heads[0], heads[1]) and not torch.equal(heads[1], heads[2])


@pytest.mark.parametrize("method", [FedPer, LgFedAvg])
def test_of_one_site_it_is_fedavg(tmp_path, method):
    deals = (Deal(20, 6),)
    one = play(toy(FedAvg(objective="fixmatch"), tmp_path, deals, name="fedavg"))
    two = play(toy(method(objective="fixmatch"), tmp_path, deals, name="other"))
    assert one.rows() == two.rows()
    for mine, theirs in zip(two.of(2, "train"), one.of(2, "train"), strict=True):
        whole = mine.upload | two.private(mine.reply.private)
        assert all(torch.equal(whole[n], t) for n, t in theirs.upload.items() if t.ndim)
