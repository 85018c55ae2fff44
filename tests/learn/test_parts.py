"""Parts of a network are found by module type and declared place, however modules are named."""

import pytest
import torch
from torch import nn

from fedapp.learn.networks import build_model, network_settings
from fedapp.learn.networks.parts import batch_norm_names, head_names, layers_of, names_of

BN = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def of(*prefixes):
    return {f"{prefix}.{name}" for prefix in prefixes for name in BN}


class Odd(nn.BatchNorm2d):
    """A batch norm by descent, with a parameter more."""

    def __init__(self, channels):
        super().__init__(channels)
        self.extra = nn.Parameter(torch.zeros(1))


RESNET9 = build_model(network_settings("resnet9", {"width": 2}), (1, 8, 8), 10)
SHARED = nn.BatchNorm1d(2)
FLAT = [nn.Linear(2, 2), nn.BatchNorm1d(2), *(nn.Linear(2, 2) for _ in range(11))]


@pytest.mark.parametrize(("model", "names"), [
    (RESNET9, of("stem.norm", "down1.norm", "down2.norm", "down3.norm",
                 "res1.0.norm", "res1.1.norm", "res2.0.norm", "res2.1.norm")),
    (nn.Sequential(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sequential(nn.BatchNorm2d(2))),
                   nn.ModuleDict({"x": nn.BatchNorm1d(3)})), of("0.1.0", "1.x")),
    (nn.Sequential(*FLAT), of("1")),  # and not 10 to 12, which begin with 1
    (nn.ModuleDict({"bn1": nn.Linear(2, 2), "norm": nn.GroupNorm(1, 2)}), set()),
    (nn.ModuleDict({"a": nn.SyncBatchNorm(2), "b": Odd(2)}), of("a", "b") | {"b.extra"}),
    (nn.ModuleDict({"plain": nn.BatchNorm2d(2, affine=False)}), of("plain") - {
        "plain.weight", "plain.bias"}),
    (nn.ModuleDict({"live": nn.BatchNorm2d(2, track_running_stats=False)}), {
        "live.weight", "live.bias"}),
    (nn.ModuleDict({"first": SHARED, "again": SHARED}), of("first", "again")),
])  # fmt: skip
def test_batch_norms_are_found_by_their_type(model, names):
    assert batch_norm_names(model) == names <= set(model.state_dict())


def test_a_container_stands_for_all_inside_it():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    inside = {f"1.{name}" for name in model[1].state_dict()}
    assert names_of(model, {id(model[1])}) == inside


def test_heads_are_known_of_declared_networks_only():
    with pytest.raises(AssertionError):
        head_names(nn.Linear(2, 2))


@pytest.mark.parametrize(("name", "inputs", "layers"), [
    ("fedsiam_mnist", (1, 28, 28), 4), ("fedsiam_cifar", (3, 32, 32), 12),
])  # fmt: skip
def test_the_papers_networks_have_as_many_layers_as_it_says(name, inputs, layers):
    found = layers_of(build_model(network_settings(name, {}), inputs, 10).state_dict())
    assert len(found) == layers and list(found) == sorted(found)


def test_a_batch_norms_statistics_belong_to_its_layer():
    names = ["pair.norm.weight", "pair.norm.running_mean", "pair.conv.weight", "scale"]
    assert layers_of(names) == {
        "": ("scale",),
        "pair.conv": ("pair.conv.weight",),
        "pair.norm": ("pair.norm.running_mean", "pair.norm.weight"),
    }
    assert layers_of([]) == {}
