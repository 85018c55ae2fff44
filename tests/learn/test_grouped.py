"""One network with the weights of many: its answers, what it cannot be made of."""

import copy

import pytest
import torch
from torch import nn

from fedapp.learn.grouped import Grouped, why_not
from fedapp.learn.networks import build_model, network_settings
from fedapp.learn.networks.base import Network
from fedapp.learn.params import tensors_of

KINDS = [
    ("fedsiam_mnist", {}, (1, 28, 28)),
    ("fedsiam_cifar", {}, (3, 16, 16)),
    ("resnet9", {"width": 4}, (3, 12, 12)),
    ("resnet9", {"width": 16, "norm": "group"}, (1, 8, 8)),
    ("resnet9", {"width": 4, "norm": "none"}, (1, 8, 8)),
    ("resnet18", {}, (3, 16, 16)),
    ("fedul_mnist", {}, (1, 8, 8)),
]


def network(name: str, settings: dict, inputs: tuple[int, ...], seed: int = 0) -> Network:
    torch.manual_seed(seed)
    return build_model(network_settings(name, settings), inputs, 5)


def weights(several):
    return [tuple(tensors_of(each).values()) for each in several]


@pytest.mark.parametrize(("name", "settings", "inputs"), KINDS)
@pytest.mark.parametrize("training", [False, True])
def test_its_answers_are_those_of_each_network(name, settings, inputs, training):
    several = [network(name, settings, inputs, seed) for seed in range(3)]
    for each in several:
        each.train(training)
        for module in each.modules():  # drawn anew by each
            if isinstance(module, nn.Dropout | nn.Dropout2d):
                module.p = 0.0
    assert why_not(several[0]) == ""
    group = Grouped(several[0], 3)
    group.load(weights(several))
    x = torch.randn(3, 6, *inputs)
    found = group(list(x))
    for one, images, answers in zip(several, x, found, strict=True):
        torch.testing.assert_close(answers, one(images), rtol=1e-4, atol=1e-4)


def test_weights_go_in_and_come_back_as_they_were():
    several = [network("resnet9", {"width": 2}, (1, 8, 8), seed) for seed in range(3)]
    before = [copy.deepcopy(each.state_dict()) for each in several]
    group = Grouped(several[0], 4)  # the fourth is filled up with the third
    group.load(weights(several))
    for each in several:
        for tensor in each.state_dict().values():
            tensor.zero_()
    group.give(weights(several))
    for each, were in zip(several, before, strict=True):
        assert all(torch.equal(t, were[name]) for name, t in each.state_dict().items())


def test_statistics_of_a_batch_are_each_networks_own():
    """Two values a channel, 1 and 3 or 10 and 30: running means of 0.1 times 2 and 20."""
    first, other = (network("resnet9", {"width": 1, "dropout": 0.0}, (1, 8, 8)) for _ in "12")
    for each in (first, other):
        each.stem.conv = nn.Identity()
        each.train()
    group = Grouped(first, 2)
    group.load(weights([first, other]))
    x = torch.tensor([1.0, 3.0]).view(2, 1, 1, 1).expand(2, 1, 8, 8)
    group([x, 10 * x])
    group.give(weights([first, other]))
    assert first.stem.norm.running_mean.item() == pytest.approx(0.2)
    assert other.stem.norm.running_mean.item() == pytest.approx(2.0)
    assert first.stem.norm.num_batches_tracked == other.stem.norm.num_batches_tracked == 1


def test_each_network_drops_by_draws_of_its_own():
    """At p = 0.5 about half of the values; the same masks whoever else is there."""
    one = network("fedsiam_mnist", {}, (1, 28, 28)).train()
    x = torch.ones(4, 1, 28, 28)

    def answers(*seeds):
        group = Grouped(one, len(seeds))
        group.load(weights([one]))
        group.draws[:] = [torch.Generator().manual_seed(seed) for seed in seeds]
        return group([x] * len(seeds))

    a, b = answers(1, 2)
    assert not torch.equal(a, b)
    assert torch.equal(answers(3, 2, 1)[2], a) and torch.equal(answers(2, 4)[0], b)


class Mixing(Network):
    """Its own code takes the mean over all channels, which a group's are not its own."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.dropout, self.head = layer, nn.Dropout(0.5), nn.Linear(1, 2)
        self.inputs, self.features = (2, 4, 4), 1

    def trunk(self, x):
        return (self.layer(x).mean((1, 2, 3)).unsqueeze(1),)

    def embed(self, features, dropout=None):
        return features[0]


class Loose(Mixing):
    """Weights outside of any layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__(layer)
        self.scale = nn.Parameter(torch.ones(1))


@pytest.mark.parametrize(
    ("one", "says"),
    [
        (Mixing(nn.Conv2d(2, 2, 3)), "as a group it"),
        (Mixing(nn.ConvTranspose2d(2, 2, 3)), "without convolutions"),
        (Mixing(nn.Sequential(nn.Conv2d(2, 2, 1), nn.PixelShuffle(1))), "PixelShuffle"),
        (Mixing(nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2, momentum=None))), "momentum"),
        (Mixing(nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular")), "circular"),
        (Loose(nn.Conv2d(2, 2, 1)), "outside of its layers"),
        (network("mlp", {}, (5,)), "without convolutions"),
    ],
)
def test_what_cannot_be_grouped_says_why(one, says):
    before = copy.deepcopy(one.state_dict())
    assert says in why_not(one)
    assert all(torch.equal(t, before[name]) for name, t in one.state_dict().items())


@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16])
def test_a_group_learns_in_the_precision_of_its_networks(compute):
    """Within rounding: three digits of bfloat16; a group's gradients are its members' own."""
    several = [network("fedsiam_mnist", {"dropout": 0.0}, (1, 16, 16), seed) for seed in range(2)]
    for each in several:
        each.compute = compute
    group = Grouped(several[0], 2)
    group.load(weights(several))
    x = torch.randn(2, 3, 1, 16, 16)
    group(list(x)).square().sum().backward()
    for one, images in zip(several, x, strict=True):
        one(images).square().sum().backward()
    near = 1e-4 if compute == torch.float32 else 0.1
    for name, whole in group.network.named_parameters():
        for mine, one in zip(whole.grad, several, strict=True):
            theirs = one.get_parameter(name).grad
            assert (mine - theirs).norm() <= near * theirs.norm(), name


def test_a_layer_that_stands_in_two_places_stays_one():
    shared = nn.Conv2d(2, 2, 1)
    one = Mixing(nn.Sequential(shared, shared))
    assert len(Grouped(one, 2).parameters) == len(list(one.parameters()))
