"""MixMatch-FedAvg: its ramp, its ends, and what it shares with FedAvg."""

import torch

from fedapp.learn.networks import initial_params
from fedapp.methods.averaging.fedavg import FedAvg
from fedapp.methods.averaging.mixmatch_avg import MixMatchAvg
from fedapp.protocol.messages import ModelRef, Task
from tests.methods.conformance import (
    PIXELS,
    Deal,
    assert_close,
    assert_same,
    context,
    data_of,
    mean_by_hand,
    play,
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
    assert_close(one, two, atol=1e-5)


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
