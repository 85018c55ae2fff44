"""MixMatch-FedAvg: its ramp, its ends, and what it shares with FedAvg."""

import pytest
import torch
from pydantic import ValidationError

from fedapp.learn.networks import initial_params
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.averaging.mixmatch_avg import MixMatchAvg
from fedapp.protocol.messages import ModelRef, Task
from tests.methods.conformance import (
    ODD,
    PIXELS,
    Deal,
    assert_close,
    assert_same,
    context,
    data_of,
    mean_by_hand,
    play,
    play_in_one_store,
    toy,
)

START = initial_params(PIXELS, (1, 8, 8), 3, seed=0)
SERVER = {"server": (ModelRef(-2, 1, "a" * 64),)}
TASK = Task(0, 1, "train", ModelRef(0, 1, "b" * 64), SERVER)


def learned(method, task=TASK, labelled=6, unlabelled=9):
    return method.site_round(task, context(data_of(labelled, unlabelled), START)).params


def test_the_weight_rises_linearly():
    method = MixMatchAvg(unlabelled_weight=10.0, ramp_rounds=4)
    assert [method.weight_in(t) for t in (1, 2, 4, 9)] == [2.5, 5.0, 10.0, 10.0]
    assert MixMatchAvg(unlabelled_weight=3.0, ramp_rounds=1).weight_in(1) == 3.0


def test_a_site_learns_by_the_weight_of_the_round():
    """A quarter of 10 in the first round of four is 2.5 without a rise."""
    rising, flat = MixMatchAvg(unlabelled_weight=10.0, ramp_rounds=4), MixMatchAvg(
        unlabelled_weight=2.5, ramp_rounds=1
    )  # fmt: skip
    assert_same(learned(rising), learned(flat))


def test_without_mixing_and_unlabelled_images_it_is_fedavg(tmp_path):
    """FedAvg as FixMatch's anchor takes the same views, order and draws."""
    deals = (Deal(9, 0), Deal(20, 0), Deal(5, 0))
    mine = play(toy(MixMatchAvg(mixup=0.0), tmp_path, deals, name="mine"))
    plain = play(toy(FedAvg("fixmatch"), tmp_path, deals, name="plain"))
    one, two = (played.server(played.of(2, "evaluate")[0]) for played in (mine, plain))
    floats = {name: tensor for name, tensor in two.items() if tensor.is_floating_point()}
    assert_close(one, floats, atol=1e-5)


def test_the_server_averages_by_all_images(tmp_path):
    played = play(toy(MixMatchAvg(), tmp_path, training__warmup_epochs=0))
    for number in (1, 2):
        mean = mean_by_hand([e.upload for e in played.of(number, "train")], [21, 23, 5])
        assert_close(played.server(played.of(number, "evaluate")[0]), mean)


def test_the_weight_matters_and_so_does_mixing():
    first = learned(MixMatchAvg())["head.weight"]
    for other in (
        MixMatchAvg(mixup=0.0), MixMatchAvg(unlabelled_weight=0.0), MixMatchAvg(temperature=1.0),
    ):  # fmt: skip
        assert not torch.equal(first, learned(other)["head.weight"])


def test_the_warm_up_is_fedavgs():
    task = Task(0, 0, "warmup", TASK.own, SERVER)
    assert_same(learned(MixMatchAvg(), task), learned(FedAvg(), task))


def test_sites_that_lack_something_take_part(tmp_path):
    played = play(toy(MixMatchAvg(), tmp_path, ODD))
    assert all(not row["skipped"] for row in played.rows())
    assert {e.task.site for e in played.of(1, "train") if e.reply.learned} == {0, 1, 3, 4, 5}


def test_sites_that_share_the_servers_store_give_the_same_numbers(tmp_path):
    one = play(toy(MixMatchAvg(), tmp_path, name="wire"))
    two = play_in_one_store(toy(MixMatchAvg(), tmp_path, name="loopback"))
    assert one.rows() == two.rows() and one.records() == two.records()


def test_all_views_go_through_at_once():
    assert MixMatchAvg(views=3).images_per_step(8, data_of()) == 32


@pytest.mark.parametrize("changes", [
    {"views": 0}, {"temperature": 0.0}, {"mixup": -0.1}, {"unlabelled_weight": -1.0},
    {"ramp_rounds": 0},
])  # fmt: skip
def test_settings_out_of_range_are_refused(changes):
    with pytest.raises(ValidationError):
        MixMatchAvg(**changes)
