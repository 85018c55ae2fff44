"""The encoder's bench: SimCLR's loss by hand, classes that are numbered anew, a body that fits."""

import math

import pytest
import torch

from bench.encoder.__main__ import make
from bench.encoder.body import small
from bench.encoder.pool import SIZE, pool_of
from bench.encoder.teaching import TEMPERATURE, contrast
from fedapp.learn.networks import build_model, network_settings
from tests.encoders import sha256


def test_codes_of_one_image_that_are_alike_and_others_that_are_not():
    """Two images, orthogonal: -log(e^5 / (e^5 + 2)) at a temperature of 1/5."""
    codes = torch.eye(2).repeat(2, 1) * torch.tensor([[3.0], [1.0], [1.0], [2.0]])
    expected = math.log(1 + 2 * math.exp(-1 / TEMPERATURE))
    assert float(contrast(codes)) == pytest.approx(expected, rel=1e-4)
    assert float(contrast(codes[[0, 1, 1, 0]])) > 1 / TEMPERATURE  # the pairs exchanged


def test_codes_that_are_all_alike_say_nothing():
    assert float(contrast(torch.ones(6, 4))) == pytest.approx(math.log(5))


def test_a_pool_has_the_classes_asked_for_numbered_anew():
    pool = pool_of("digits", "7,2", 100, 0)
    assert pool.classes == ("7", "2") and set(pool.labels.tolist()) == {0, 1}
    assert pool.inputs.shape == (100, 1, SIZE, SIZE)
    every = pool_of("digits", "7,2", 0, 0)
    assert 340 < len(every.labels) < 360
    assert torch.equal(pool_of("digits", "2", 0, 0).inputs, every.inputs[every.labels == 1])


@pytest.mark.parametrize("how", ["supervised", "self-supervised"])
def test_what_is_made_is_an_encoder_of_this_project(tmp_path, how):
    file = tmp_path / "w.safetensors"
    make(file, "digits", "0,1", how, 256, 1, 0)
    fields = {"body": "bench.encoder.body:small", "weights": str(file)}
    settings = network_settings("encoder", fields | {"weights_sha256": sha256(file)})
    network = build_model(settings, (1, 16, 16), 4)
    assert network.features == small().features == 128
    assert network.trunk(torch.rand(2, 1, 16, 16))[0].shape == (2, 128)
