"""A server's optimiser: by hand, where it is the average itself, and at the extremes."""

import math
from functools import reduce

import pytest
import torch

from fedapp.aggregation import rule_of
from fedapp.aggregation.base import Memory
from fedapp.aggregation.server_optimizers import FedAdam, FedAvgM
from tests.aggregation.test_averages import TRAINED, members_of, model

NONE = rule_of("none")


def averaged(rule, models, own, memory=None):
    total = reduce(rule.accumulate, members_of(models), rule.start(own))
    return rule.finish(total, own, TRAINED, memory or Memory())


def went(rule, means):
    """The first weight after each average of one member, from 0 on."""
    own, memory, way = model(0), Memory(), []
    for mean in means:
        average = averaged(rule, [model(mean)], own, memory)
        own, memory = average.params, average.memory
        way.append(own["weight"][0].item())
    return way


# --- by hand --------------------------------------------------------------------------------------


def test_momentum_by_hand():
    """Changes 1, 1 and 0 of the way: v = 1, 1.5, 0.75 at beta = 0.5; eta = 2 goes twice as far."""
    assert went(FedAvgM(NONE, 1.0, 0.5), [1, 2, 2.5]) == [1, 2.5, 3.25]
    assert went(FedAvgM(NONE, 2.0, 0.5), [1, 3, 5]) == [2, 5, 6.5]


def test_adam_by_hand():
    """tau = 3, beta_1 = 0.5, beta_2 = 0.75: Delta = 8, m = 4, v = 0.75 9 + 0.25 64 = 22.75."""
    rule = FedAdam(NONE, 0.1, 0.5, 0.75, 3.0)
    first = 0.1 * 4 / (math.sqrt(22.75) + 3)
    second = first + 0.1 * (0.5 * 4 + 0.5 * 2) / (math.sqrt(0.75 * 22.75 + 0.25 * 4) + 3)
    assert went(rule, [8, first + 2]) == pytest.approx([first, second], rel=1e-6)
    memory = averaged(rule, [model(8)], model(0)).memory
    assert {name: tensor.tolist() for name, tensor in memory.tensors.items()} == {
        "FedAdam.mean.weight": [4.0, 0.0],
        "FedAdam.square.weight": [22.75, 6.75],
    }


@pytest.mark.parametrize("rule", [FedAvgM(NONE, 3.0, 0.9), FedAdam(NONE, 3.0)])
def test_statistics_and_whole_numbers_are_the_averages(rule):
    found = averaged(rule, [model(1, 0.2, 5), model(1, 0.4, 5)], model(0, 1.0, 3)).params
    assert found["running_var"].item() == pytest.approx(0.3) and found["count"].item() == 3
    assert found["weight"].dtype == torch.float32


def test_it_is_around_any_rule():
    models = [model(1), model(2), model(50)]
    for name, mean in (("median", 2.0), ("bounded", 5 / 3), ("filtered", 1.0)):
        found = averaged(FedAvgM(rule_of(name), 0.5), models, model(0))
        assert found.params["weight"][0].item() == pytest.approx(mean / 2)
        assert averaged(FedAvgM(rule_of(name)), models, model(0)).memory == Memory(
            averaged(rule_of(name), models, model(0)).memory.sites
        )
    assert not FedAvgM(NONE).masked


def test_what_the_other_rule_remembers_is_its_own():
    """`Latest` keeps the weights before, and nothing else of what there was."""
    rule = FedAvgM(rule_of("tests.aggregation.own_rule:Latest"), 1.0, 0.5)
    assert went(rule, [1, 2, 2.5]) == [1, 2.5, 3.25]
    memory = averaged(rule, [model(1)], model(0)).memory
    assert set(memory.tensors) == {"latest.weight", "FedAvgM.velocity.weight"}
    assert memory.sites == {0: 1.0}


# --- where it is what we had ----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_at_rate_1_without_momentum_it_is_the_average_bit_for_bit(seed):
    draws = torch.Generator().manual_seed(seed)
    models = [{"weight": torch.randn(99, generator=draws)} for _ in range(4)]
    models[0]["weight"][:9] = models[3]["weight"][:9] = -0.0
    own = models.pop()
    mean = averaged(NONE, models, own).params
    found = averaged(FedAvgM(NONE), models, own)
    assert found.params["weight"].numpy().tobytes() == mean["weight"].numpy().tobytes()
    assert found.memory == Memory()
    first = averaged(FedAvgM(NONE, 1.0, 0.9), models, own)  # in the first average there is no v
    assert first.params["weight"].equal(mean["weight"])


def test_adam_with_a_large_tau_is_the_average():
    """v stays tau^2, so every step is eta / (2 tau) of the change: all of it at eta = 2 tau."""
    rule = FedAdam(NONE, 2e4, 0.0, 1 - 1e-12, 1e4)
    assert went(rule, [1, -2, 5]) == pytest.approx([1, -2, 5], rel=1e-5)


def test_who_does_not_change_stays():
    for rule in (FedAvgM(NONE, 5.0, 0.9), FedAdam(NONE, 5.0)):
        assert went(rule, [0, 0]) == [0, 0]


# --- the extremes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [1e-3, 1, 1e6, 1e15])
def test_adam_goes_no_further_than_its_rate_where_tau_is_small(change):
    """Without memory m / sqrt(v) is the change's sign."""
    assert went(FedAdam(NONE, 0.25, 0.0, 0.0, 1e-8), [change]) == pytest.approx([0.25], rel=1e-4)
    assert went(FedAdam(NONE, 0.25, 0.0, 0.0, 1e-8), [-change]) == pytest.approx([-0.25], rel=1e-4)


def test_velocity_of_equal_changes_ends_at_one_over_one_minus_beta():
    own, memory = model(0), Memory()
    for _ in range(200):
        mean = model(own["weight"][0].item() + 1)
        average = averaged(FedAvgM(NONE, 1.0, 0.9), [mean], own, memory)
        own, memory = average.params, average.memory
    assert memory.tensors["FedAvgM.velocity.weight"][0].item() == pytest.approx(10, rel=1e-3)


@pytest.mark.parametrize("rule", [FedAvgM(rule_of("filtered"), 1.0, 0.9),
                                  FedAdam(rule_of("filtered"))])  # fmt: skip
def test_where_nobody_is_heard_nothing_moves_and_nothing_is_forgotten(rule):
    known = averaged(rule, [model(1), model(1)], model(0)).memory
    away = Memory({0: -1.0, 1: -1.0}, known.tensors)
    average = averaged(rule, [model(5), model(5)], model(0), away)
    assert average.params is None and average.left_out == (0, 1)
    assert average.memory.tensors is known.tensors
