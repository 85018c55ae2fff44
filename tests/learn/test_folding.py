"""Batch norms folded into convolutions: by hand, in float64, and where they must stay."""

import pytest
import torch
from torch import nn
from torchvision.models import get_model

from fedapp.learn.networks import build_model, network_settings
from fedapp.learn.networks._folding import PaddedOnce, folded
from tests.encoders import encoder_fields, written


def norm_of(mean, variance, gamma, beta, channels=1):
    """A batch norm whose moments are given; it adds its eps to the variance."""
    norm = nn.BatchNorm2d(channels)
    norm.running_mean.fill_(mean)
    norm.running_var.fill_(variance - norm.eps)
    nn.init.constant_(norm.weight, gamma)
    nn.init.constant_(norm.bias, beta)
    return norm


def norms_in(network):
    return sum(isinstance(module, nn.BatchNorm2d) for module in network.modules())


def drawn_moments(network):
    """The network in float64 with moments as after training; torch's own would change nothing."""
    torch.manual_seed(5)
    for norm in network.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
            nn.init.uniform_(norm.weight, 0.5, 2)
            nn.init.normal_(norm.bias)
    return network.eval().double().requires_grad_(False)


def assert_alike(network, made, *shapes):
    for shape in shapes:
        x = torch.rand(shape, dtype=torch.float64)
        torch.testing.assert_close(made(x), network(x), rtol=1e-9, atol=1e-9)


def test_a_number_worked_out_by_hand():
    conv = nn.Conv2d(1, 1, 1, bias=False)
    nn.init.constant_(conv.weight, 2)
    made = folded(nn.Sequential(conv, norm_of(mean=3, variance=4, gamma=6, beta=5)).eval())
    # (2 x - 3) / 2 * 6 + 5 = 6 x - 4
    assert made[0].weight.item() == pytest.approx(6) and made[0].bias.item() == pytest.approx(-4)
    assert made(torch.full((1, 1, 1, 1), 1.5)).item() == pytest.approx(5)


def test_a_norm_that_changes_nothing_leaves_the_weights():
    conv = nn.Conv2d(3, 4, 3)
    made = folded(nn.Sequential(conv, norm_of(0, 1, 1, 0, channels=4), nn.ReLU()).eval())
    assert not norms_in(made)
    torch.testing.assert_close(made[0].weight, conv.weight)
    torch.testing.assert_close(made[0].bias, conv.bias)


@pytest.mark.parametrize(("name", "before", "after"), [
    ("resnet18", 20, 0),
    ("densenet121", 121, 62),  # these come after a concatenation or a pooling
    ("mobilenet_v3_small", 34, 0),
    ("shufflenet_v2_x0_5", 56, 0),
    ("squeezenet1_1", 0, 0),
])  # fmt: skip
def test_networks_of_torchvision_answer_alike_and_are_not_changed(name, before, after):
    network = drawn_moments(get_model(name, weights=None))
    made = folded(network)
    assert (norms_in(network), norms_in(made)) == (before, after)
    assert (made is network) == (before == 0)
    assert_alike(network, made, (2, 3, 64, 64))


@pytest.mark.parametrize(("kernel", "stride", "once"), [
    (3, 2, True), (5, 2, True), (7, 2, True), (4, 2, False), (3, 1, False), (3, 3, False),
    ((3, 5), 2, False),
])  # fmt: skip
def test_tensorflows_padding_without_a_copy(kernel, stride, once):
    timm = pytest.importorskip("timm", reason="needs the extra encoder")
    conv = timm.layers.Conv2dSame(4, 8, kernel, stride, groups=2)
    network = drawn_moments(nn.Sequential(conv, nn.BatchNorm2d(8)))
    made = folded(network)
    assert isinstance(made[0], PaddedOnce) == once and not norms_in(made)
    assert_alike(network, made, (2, 4, 8, 8), (2, 4, 9, 9), (2, 4, 8, 9), (1, 4, 12, 8))


def test_timms_lite_networks_fold_whole():
    timm = pytest.importorskip("timm", reason="needs the extra encoder")
    network = drawn_moments(timm.create_model("tf_efficientnet_lite0", pretrained=False))
    made = folded(network)
    assert (norms_in(network), norms_in(made)) == (49, 0)
    assert sum(isinstance(module, PaddedOnce) for module in made.modules()) == 5
    assert_alike(network, made, (2, 3, 64, 64), (1, 3, 33, 33))


class Unlike(nn.Module):
    """A convolution and a batch norm, used as `how` says."""

    def __init__(self, how):
        super().__init__()
        self.how, self.conv, self.norm = how, nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)

    def forward(self, x):
        if self.how == "branches":
            return self.norm(self.conv(x)) if x.sum() > 0 else x
        if self.how == "conv goes elsewhere, too":
            y = self.conv(x)
            return self.norm(y) + y
        if self.how == "conv twice":
            return self.norm(self.conv(self.conv(x)))
        if self.how == "norm twice":
            return self.norm(self.norm(self.conv(x)))
        if self.how == "something between":
            return self.norm(self.conv(x).relu())
        return self.conv(self.norm(x))


@pytest.mark.parametrize("how", [
    "branches", "conv goes elsewhere, too", "conv twice", "norm twice", "something between",
    "norm first",
])  # fmt: skip
def test_where_the_norm_stays(how):
    network = drawn_moments(Unlike(how))
    assert folded(network) is network


def test_a_norm_without_moments_of_its_own_stays():
    network = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1, track_running_stats=False))
    assert folded(network.eval()) is network


class Standardised(nn.Conv2d):
    """Its weights are not what it multiplies by."""

    def forward(self, x):
        return nn.functional.conv2d(x, self.weight - self.weight.mean())


def test_a_convolution_that_changes_its_weights_stays():
    for conv in (
        Standardised(2, 2, 1),
        nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 2, 1)),
        nn.utils.spectral_norm(nn.Conv2d(2, 2, 1)),
    ):
        network = drawn_moments(nn.Sequential(conv, nn.BatchNorm2d(2)))
        assert folded(network) is network


class Remembering(nn.Sequential):
    """Remembers its last answer."""

    last = None

    def forward(self, x):
        self.last = super().forward(x)
        return self.last


def test_a_network_is_not_changed_by_being_looked_at():
    network = drawn_moments(Remembering(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)))
    made = folded(network)
    assert not norms_in(made) and network.last is None and made.last is None


def test_a_norm_that_is_in_training_stays():
    network = drawn_moments(nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)))
    network[1].train()
    assert folded(network) is network


def test_one_layer_under_two_names_is_called_twice():
    conv = nn.Conv2d(2, 2, 1)
    network = drawn_moments(nn.Sequential(conv, nn.BatchNorm2d(2), conv, nn.BatchNorm2d(2)))
    assert folded(network) is network


def own() -> nn.Module:
    pooled = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), *pooled, nn.Linear(2, 2))


def test_a_users_own_network_is_computed_as_it_is(tmp_path):
    fields = written(tmp_path / "w.safetensors", own().state_dict()) | {"body": f"{__name__}:own"}
    network = build_model(network_settings("encoder", fields), (3, 32, 32), 4)
    assert norms_in(network._held.body.module) == 1


def test_only_a_frozen_encoder_is_folded():
    def bodys_norms(**fields):
        settings = network_settings("encoder", encoder_fields() | fields)
        return norms_in(build_model(settings, (3, 32, 32), 4)._held.body.module)

    assert [bodys_norms(trained=part) for part in ("head", "last", "all", "head")] == [0, 56, 56, 0]
