"""ResNet-9: exact size, sizes of images, where dropout stands, reproducible start."""

import pytest
import torch
from torch import nn

from fedapp.learn.networks import build_model, initial_params
from fedapp.learn.networks.resnet9 import ResNet9Settings
from fedapp.learn.params import digest_of, to_bytes

PAPER = ResNet9Settings()


def parameters(width, channels, classes):
    """Count by hand: 3x3 convolutions without bias, two per batch-norm channel, the head."""
    w = width
    convs = [(channels, w), (w, 2 * w), (2 * w, 2 * w), (2 * w, 2 * w), (2 * w, 4 * w),
             (4 * w, 8 * w), (8 * w, 8 * w), (8 * w, 8 * w)]  # fmt: skip
    return sum(9 * i * o + 2 * o for i, o in convs) + 8 * w * classes + classes


def test_exact_number_of_parameters():
    count = sum(p.numel() for p in build_model(PAPER, (3, 8, 8), 10).parameters())
    assert count == parameters(64, 3, 10) == 6_573_130
    grey = sum(p.numel() for p in build_model(ResNet9Settings(width=5), (1, 8, 8), 7).parameters())
    assert grey == parameters(5, 1, 7)


@pytest.mark.parametrize("side", [8, 9, 28, 32, 96])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_image_size(side, channels):
    model = build_model(ResNet9Settings(width=2), (channels, side, side), 4).eval()
    assert model(torch.zeros(2, channels, side, side)).shape == (2, 4)


def test_dropout_acts_only_in_the_tail():
    model = build_model(ResNet9Settings(width=4, dropout=0.5), (1, 8, 8), 3).eval()
    model.dropout.train()
    x = torch.rand(2, 1, 8, 8)
    first, again = model.trunk(x), model.trunk(x)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(model.tail(first), model.tail(first))
    assert sum(isinstance(m, nn.Dropout) for m in model.modules()) == 1  # applied twice


def test_the_tail_is_the_head_on_the_embedding():
    model = build_model(ResNet9Settings(width=4, dropout=0.5), (1, 8, 8), 3).eval()
    features = model.trunk(torch.rand(2, 1, 8, 8))
    embedding = model.embed(features)
    assert embedding.shape == (2, 32)
    by_hand = embedding @ model.head.weight.T + model.head.bias
    torch.testing.assert_close(model.classify(embedding), by_hand)
    assert torch.equal(model.tail(features), model.classify(embedding))
    doubled = model.embed(features, lambda h, p: 2 * h)
    assert torch.equal(model.tail(features, lambda h, p: 2 * h), model.classify(doubled))


def test_the_start_depends_on_the_seed_alone():
    small = ResNet9Settings(width=2)
    torch.manual_seed(1)
    one = digest_of(to_bytes(initial_params(small, (1, 8, 8), 3, seed=0)))
    state = torch.get_rng_state()
    two = digest_of(to_bytes(initial_params(small, (1, 8, 8), 3, seed=0)))
    assert one == two != digest_of(to_bytes(initial_params(small, (1, 8, 8), 3, seed=1)))
    assert torch.equal(state, torch.get_rng_state())
