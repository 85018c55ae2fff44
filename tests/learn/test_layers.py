"""The layers of a network."""

import pytest

from fedapp.learn.networks import build_model
from fedapp.learn.networks.fedsiam_cifar import FedSiamCifarSettings
from fedapp.learn.networks.fedsiam_mnist import FedSiamMnistSettings
from fedapp.learn.networks.parts import layers_of


@pytest.mark.parametrize(("settings", "inputs", "layers"), [
    (FedSiamMnistSettings(), (1, 28, 28), 4), (FedSiamCifarSettings(), (3, 32, 32), 12),
])  # fmt: skip
def test_the_papers_networks_have_as_many_layers_as_it_says(settings, inputs, layers):
    names = build_model(settings, inputs, 10).state_dict()
    found = layers_of(names)
    assert len(found) == layers and list(found) == sorted(found)
    assert sorted(name for each in found.values() for name in each) == sorted(names)


def test_a_batch_norms_statistics_belong_to_its_layer():
    names = ["pair.norm.weight", "pair.norm.running_mean", "pair.conv.weight", "scale"]
    assert layers_of(names) == {
        "": ("scale",),
        "pair.conv": ("pair.conv.weight",),
        "pair.norm": ("pair.norm.running_mean", "pair.norm.weight"),
    }
    assert layers_of([]) == {}
