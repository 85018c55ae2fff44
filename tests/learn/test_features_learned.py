"""Filters learned from patches by sums, and frozen networks."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from fedapp.core.errors import ConfigError
from fedapp.learn.features import build_features
from fedapp.learn.features.base import MAX_FEATURES
from fedapp.learn.features.both import Both
from fedapp.learn.features.network import FrozenNetwork
from fedapp.learn.features.patches import RIDGE, ROUNDING_STEPS, THRESHOLD, Patches, whitening
from fedapp.learn.networks import build_model, network_settings
from fedapp.learn.networks.base import Network
from tests.learn.test_features import answers, exported, extremes, images

SHAPES = [(1, 8, 8), (3, 14, 17), (4, 31, 9), (3, 70, 130)]


def taught(shape=(3, 14, 14), count=40, filters=8, rounds=2, seed=0):
    features = Patches(shape, seed, filters, rounds).eval().requires_grad_(False)
    x = images(count, *shape)
    for step in range(features.exchanges()):
        features.learned(step, features.sums(step, x))
    return features


def added(parts):
    return {name: sum(part[name] for part in parts) for name in parts[0]}


def toy():
    """Two filters along the first two numbers of a patch of 36; nothing whitened."""
    features = Patches((1, 8, 8), 0, filters=2, rounds=1)
    features.filters.zero_()
    features.filters[0, 0] = features.filters[1, 1] = 1
    return features


def test_any_split_and_order_gives_the_same_filters_to_the_bit():
    shape, x = (3, 14, 14), images(41, 3, 14, 14) * 3 + 1
    for sizes in ([41], [1] * 41, [20, 0, 21], [7, 30, 4]):
        split, whole = Patches(shape, 0, 8, 3), Patches(shape, 0, 8, 3)
        for step in range(4):
            whole.learned(step, whole.sums(step, x))
            parts = [split.sums(step, part) for part in x.flip(0).split(sizes)]
            total = added(parts[::-1])
            for name, tensor in whole.sums(step, x).items():
                if step == 0:
                    assert torch.equal(total[name], tensor), name
            split.learned(step, total)
        for name, tensor in whole.state_dict().items():
            assert torch.equal(split.state_dict()[name], tensor), name


def test_sums_are_as_the_schema_says_and_zeros_without_images():
    features = taught()
    for step in range(features.exchanges()):
        for x in (images(3, 3, 14, 14), images(3, 3, 14, 14)[:0]):
            sums, schema = features.sums(step, x), features.sum_schema(step)
            assert {n: (tuple(t.shape), t.dtype) for n, t in sums.items()} == dict(schema)
            assert bool(len(x)) == any(t.any() for t in sums.values())
    before = {name: tensor.clone() for name, tensor in features.state_dict().items()}
    for step in range(features.exchanges()):
        features.learned(step, features.sums(step, images(1, 3, 14, 14)[:0]))
    assert all(torch.equal(before[name], t) for name, t in features.state_dict().items())
    assert set(before) == {"mean", "whitening", "filters"}
    assert {t.dtype for t in before.values()} == {torch.float32}


def test_sums_of_patches_by_hand():
    """An image of 8 pixels has nine patches; all nine are taken."""
    features, x = Patches((1, 8, 8), 0), images(1, 1, 8, 8)
    patches = []
    for row in range(3):
        for column in range(3):
            patch = x[0, 0, row : row + 6, column : column + 6].flatten().double()
            patch = patch - patch.mean()
            patch = patch / math.sqrt(float(patch.square().mean()) + 0.01)
            patches.append((patch * 1024).round() / 1024)
    sums = features.sums(0, x)
    assert ROUNDING_STEPS == 1024 and sums["count"] == 9
    torch.testing.assert_close(sums["sum"], torch.stack(patches).sum(0), atol=1e-9, rtol=0)
    products = sum(patch.outer(patch) for patch in patches)
    torch.testing.assert_close(sums["products"], products, atol=1e-9, rtol=0)


def test_whitening_by_hand():
    """Variances 9 and 1 along (1, 1) and (1, -1); the ridge is a tenth of their mean, 0.5."""
    assert RIDGE == 0.1
    found = whitening(torch.tensor([[5.0, 4.0], [4.0, 5.0]]).double())
    a, b = 9.5**-0.5, 1.5**-0.5
    expected = torch.tensor([[a + b, a - b], [a - b, a + b]]).double() / 2
    torch.testing.assert_close(found, expected)


def test_even_images_whiten_nothing():
    features = Patches((1, 8, 8), 0)
    features.learned(0, features.sums(0, torch.full((3, 1, 8, 8), 2.0)))
    assert torch.equal(features.whitening, torch.eye(36))
    assert torch.equal(whitening(torch.zeros(4, 4).double()), torch.eye(4).double())


def test_assignment_by_hand():
    patches = torch.zeros(3, 36, dtype=torch.float64)
    patches[0, :2] = torch.tensor([3.0, 1.0])
    patches[1, :2] = torch.tensor([1.0, -2.0])
    patches[2, :2] = torch.tensor([-4.0, 3.0])
    found, weights = toy()._assigned(patches)
    assert found.tolist() == [0, 1, 0] and weights.tolist() == [3, -2, -4]


@pytest.mark.parametrize(("weights", "sums", "mean", "filters"), [
    ([-1.0, -2.0], [[25, -9], [-2, 4]], 0.0, [[25, -9], [-2, 4]]),  # 3 (3, 1) - 4 (-4, 3), ...
    ([4.0, 0.0], [[5, 3], [0, 0]], 0.5, [[3, 3], [0, 1]]),  # 5 - 4 x 0.5 = 3; the other one stays
])  # fmt: skip
def test_a_round_of_k_means_by_hand(weights, sums, mean, filters):
    """A filter becomes the sum of its patches, less its weights times the mean, at length 1."""
    features = toy()
    features.mean[0] = mean
    total = {"weight": torch.tensor(weights).double(), "sum": torch.zeros(2, 36).double()}
    total["sum"][:, :2] = torch.tensor(sums)
    features.learned(1, total)
    expected = torch.tensor(filters).float()
    torch.testing.assert_close(features.filters[:, :2], expected / expected.norm(dim=1)[:, None])
    assert not features.filters[:, 2:].any()


def test_responses_are_those_of_patches():
    """The convolution gives what whitened patches times filters give, one by one."""
    features, x = taught((2, 12, 11)), images(2, 2, 12, 11)  # 7 x 6 places
    whole = torch.zeros(2, 8, 7, 6)
    for row in range(7):
        for column in range(6):
            patch = x[:, :, row : row + 6, column : column + 6].flatten(1)
            patch = patch - patch.mean(1, keepdim=True)
            patch = patch / (patch.square().mean(1, keepdim=True) + 0.01).sqrt()
            z = (patch - features.mean) @ features.whitening @ features.filters.T
            whole[:, :, row, column] = (z - THRESHOLD).clamp_min(0)
    parts = [
        whole[:, :, a : a + 4, b : b + 3].mean((2, 3)) for a in (0, 4) for b in (0, 3)
    ]  # 4 and 3 rows
    expected = torch.stack(parts, 2).flatten(1).sqrt()
    expected = expected / expected.norm(dim=1, keepdim=True)
    torch.testing.assert_close(features(x), expected, rtol=1e-3, atol=1e-4)


def test_k_means_finds_the_stripes_that_images_are_made_of():
    """Each image repeats one of two stripes, with some noise; filters come to be like them."""
    across = torch.tensor([1.0, -1.0]).repeat(7).expand(14, 14)
    x = torch.stack((across, across.T)).repeat(100, 1, 1)[:, None] + images(200, 1, 14, 14) / 5
    features = Patches((1, 14, 14), 0, filters=4, rounds=10)
    shapes = torch.stack((across[:6, :6], across.T[:6, :6])).flatten(1) / 6
    before = (features.filters @ shapes.T).abs().max(0).values
    for step in range(features.exchanges()):
        features.learned(step, features.sums(step, x))
    after = (features.filters @ shapes.T).abs().max(0).values
    assert float(before.max()) < 0.5 and float(after.min()) > 0.9


@pytest.mark.parametrize("shape", SHAPES)
def test_norms_and_extremes(shape):
    features, x = taught(shape, count=5), extremes(8, shape)
    found = features(x)
    assert found.dtype == torch.float32 and found.shape == (8, features.size) == (8, 32)
    assert bool(found.isfinite().all()) and float(found.norm(dim=1).max()) <= 1
    assert features(x[:0]).shape == (0, 32)
    for step in range(3):
        assert all(t.isfinite().all() for t in features.sums(step, x).values())


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_hardly_depends_on_the_others(shape):
    """Kernels of convolutions may differ by the number of images; the last bits may with them."""
    features, x = taught(shape, count=5), images(7, *shape)
    parts = torch.cat([features(part) for part in x.split(1)])
    torch.testing.assert_close(parts, features(x), rtol=0, atol=2e-6)
    many = images(features.at_once + 3, *shape)
    torch.testing.assert_close(features.of(many), features(many), rtol=0, atol=2e-6)
    assert features.of(many[:0]).shape == (0, features.size)


def test_both_stand_side_by_side(tmp_path):
    """Of images that are averaged first; as ONNX, which holds both kinds of features."""
    shape = (3, 64, 64)
    alone, features = taught(shape), Both(shape, 0, 8, 2).eval().requires_grad_(False)
    for step in range(features.exchanges()):
        features.learned(step, features.sums(step, images(40, *shape)))
    assert features.state_dict().keys() == alone.state_dict().keys()
    x = images(5, *shape)
    parts = torch.cat((build_features("hog", shape)(x), alone(x)), 1)
    torch.testing.assert_close(features(x), parts / math.sqrt(2))
    assert features.of(x).shape == (5, features.size) == (5, 880 + 32)
    session = exported(features, shape, tmp_path / "both.onnx")
    for some in (x[:1], x):
        np.testing.assert_allclose(answers(session, some), features(some), rtol=1e-3, atol=1e-5)
    assert build_features("both", (3, 32, 32)).size == 1680


class Wide(Network):
    """Hands its inputs on."""

    def __init__(self, d):
        super().__init__()
        self.features, self.dropout, self.head = d, nn.Dropout(0.5), nn.Linear(d, 2)

    def trunk(self, x):
        return (x,)

    def embed(self, features, dropout=None):
        return self.dropout(features[0])


def test_a_frozen_network_by_hand():
    features = build_features("network", (2,), network=Wide(2)).train()
    assert features.size == 2 and not features.network.dropout.training
    found = features(torch.tensor([[3.0, 4.0], [0.0, 0.0], [-2.0, 0.0]]))
    expected = torch.tensor([[0.6, 0.8], [0, 0], [-1, 0]])
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)


def test_a_wide_network_is_projected():
    d = MAX_FEATURES + 500
    features, x = FrozenNetwork(Wide(d), seed=1), images(6, d)
    found = features(x)
    assert found.shape == (6, MAX_FEATURES) and float(found.norm(dim=1).max()) <= 1
    # Cosines stay: of random directions each is off by about 1 / sqrt(2000); 5 sigma
    cosines = nn.functional.normalize(x) @ nn.functional.normalize(x).T
    assert float((found @ found.T - cosines).abs().max()) < 5 / math.sqrt(MAX_FEATURES)
    assert torch.equal(FrozenNetwork(Wide(d), seed=1)(x), found)
    assert not torch.equal(FrozenNetwork(Wide(d), seed=2)(x), found)
    assert "projection" not in features.state_dict()


def test_a_network_of_the_registry_as_onnx(tmp_path):
    network = build_model(network_settings("resnet9", {"width": 2}), (3, 16, 16), 4)
    features = build_features("network", (3, 16, 16), network=network)
    assert features.size == network.features
    x = images(4, 3, 16, 16)
    assert features(x).norm(dim=1).tolist() == pytest.approx([1] * 4, abs=1e-4)
    torch.testing.assert_close(features(x[:1]), features(x)[:1], rtol=1e-4, atol=1e-5)
    assert features(x).requires_grad is False


def test_features_of_a_network_need_one():
    with pytest.raises(ConfigError, match=r"need a network with weights; set model\.weights"):
        build_features("network", (3, 16, 16))
