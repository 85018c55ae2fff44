"""Parts of a network are found by module type and declared place, however modules are named."""

import pytest
import torch
from torch import nn

from fedapp.learn.networks import build_model
from fedapp.learn.networks.parts import batch_norm_names, head_names, names_of
from fedapp.learn.networks.resnet9 import ResNet9, ResNet9Settings

BN = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def of(*prefixes):
    return {f"{prefix}.{name}" for prefix in prefixes for name in BN}


@pytest.fixture
def resnet():
    return build_model(ResNet9Settings(width=2), (1, 8, 8), 10)


def test_a_resnet_9_has_eight_batch_norms_of_five_tensors(resnet):
    assert batch_norm_names(resnet) == of(
        "stem.norm", "down1.norm", "down2.norm", "down3.norm",
        "res1.0.norm", "res1.1.norm", "res2.0.norm", "res2.1.norm",
    )  # fmt: skip
    assert len(batch_norm_names(resnet)) == 40


def test_the_head_is_the_declared_linear_layer(resnet):
    assert head_names(resnet) == {"head.weight", "head.bias"}


def test_every_name_is_a_tensor_of_the_state_dict(resnet):
    assert (batch_norm_names(resnet) | head_names(resnet)) <= resnet.state_dict().keys()


def test_nested_batch_norms_are_found_though_no_name_says_so():
    model = nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sequential(nn.BatchNorm2d(2))),
        nn.ModuleDict({"x": nn.BatchNorm1d(3)}),
    )
    assert batch_norm_names(model) == of("0.1.0", "1.x")


def test_an_index_that_begins_like_a_batch_norms_is_another_layer():
    """In a flat Sequential, 1 is a batch norm and 10 to 12 begin with 1."""
    layers = [nn.Linear(2, 2), nn.BatchNorm1d(2), *(nn.Linear(2, 2) for _ in range(11))]
    assert batch_norm_names(nn.Sequential(*layers)) == of("1")


def test_names_that_say_bn_are_no_batch_norms():
    model = nn.ModuleDict({"bn1": nn.Linear(2, 2), "norm": nn.GroupNorm(1, 2)})
    assert batch_norm_names(model) == frozenset()


class Odd(nn.BatchNorm2d):
    """A batch norm by descent, with a parameter more."""

    def __init__(self, channels):
        super().__init__(channels)
        self.extra = nn.Parameter(torch.zeros(1))


def test_kinds_of_batch_norm_count_by_descent_with_all_they_hold():
    model = nn.ModuleDict({"a": nn.SyncBatchNorm(2), "b": Odd(2), "c": nn.BatchNorm3d(2)})
    assert batch_norm_names(model) == of("a", "b", "c") | {"b.extra"}


def test_a_batch_norm_without_statistics_or_weights_has_fewer_tensors():
    model = nn.ModuleDict({
        "plain": nn.BatchNorm2d(2, affine=False),
        "live": nn.BatchNorm2d(2, track_running_stats=False),
    })  # fmt: skip
    assert batch_norm_names(model) == {
        "plain.running_mean", "plain.running_var", "plain.num_batches_tracked",
        "live.weight", "live.bias",
    }  # fmt: skip


def test_a_module_that_stands_in_two_places_is_found_in_both():
    shared = nn.BatchNorm1d(2)
    model = nn.ModuleDict({"first": shared, "again": shared})
    assert batch_norm_names(model) == of("first", "again") == set(model.state_dict())


def test_the_whole_network_may_be_the_part():
    norm = nn.BatchNorm1d(2)
    assert names_of(norm, {id(norm)}) == set(BN)


def test_a_container_stands_for_all_inside_it():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    inside = {f"1.{name}" for name in model[1].state_dict()}
    assert names_of(model, {id(model[1])}) == inside


def test_heads_are_known_of_declared_networks_only(resnet):
    assert isinstance(resnet, ResNet9)
    with pytest.raises(AssertionError):
        head_names(nn.Linear(2, 2))
