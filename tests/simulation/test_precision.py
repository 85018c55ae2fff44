"""bfloat16: convolutions only; parameters, statistics and results stay float32 and near.

bfloat16 has 8 significant bits, so each layer rounds to 0.2 to 0.4 %. The tolerances are three
times the largest difference seen over nine networks of widths 2, 4 and 8 (`NEAR`: 0.018).
"""

import pytest
import torch

from fedapp.core.devices import pick_dtype
from fedapp.core.rng import seeded, torch_stream
from fedapp.core.settings import TrainSettings
from fedapp.learn.metrics import predict
from fedapp.learn.networks import build_model, initial_params
from fedapp.learn.networks.resnet9 import ResNet9Settings
from fedapp.learn.training import recalibrate, train
from fedapp.learn.uncertainty import mc_probabilities
from fedapp.simulation.loopback import run_loopback
from tests.small import small

CPU = torch.device("cpu")
NEAR = 0.05
BOTH = (torch.float32, torch.bfloat16)
IMAGES = torch.randint(
    256, (60, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(7)
)


def scale(images):
    return images.float() / 255


def pair(dropout=0.5):
    """Two networks with the same weights, one of each precision."""
    settings = ResNet9Settings(width=4, dropout=dropout)
    models = [build_model(settings, (1, 8, 8), 3, compute) for compute in BOTH]
    for model in models:
        model.load_state_dict(initial_params(settings, (1, 8, 8), 3, seed=0))
        recalibrate(model, IMAGES, scale)  # logits of a usual size
    return models


def vector(model):
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


def dtypes(model):
    return {t.dtype for t in model.state_dict().values()}


@pytest.mark.parametrize(("setting", "device", "dtype"), [
    ("auto", "cpu", torch.float32), ("auto", "cuda", torch.bfloat16),
    ("float32", "cuda", torch.float32), ("bfloat16", "cpu", torch.bfloat16),
])  # fmt: skip
def test_auto_is_bfloat16_on_a_gpu_only(setting, device, dtype):
    assert pick_dtype(setting, torch.device(device)) == dtype


def test_convolutions_compute_in_it_and_logits_are_float32():
    for model, dtype in zip(pair(), BOTH, strict=True):
        features = model.trunk(scale(IMAGES))
        assert {part.dtype for part in features} == {dtype}
        assert model.tail(features).dtype == torch.float32
        assert dtypes(model) == {torch.float32, torch.int64}


def test_the_network_decides_not_its_caller():
    model = pair()[0]
    with torch.autocast("cpu", torch.bfloat16):
        inside = model(scale(IMAGES))
    assert torch.equal(inside, model(scale(IMAGES)))


def test_probabilities_are_near():
    scored, predicted = [], []
    for model in pair():
        with seeded(CPU, 0, "the same masks"):
            scored.append(mc_probabilities(model, IMAGES, 5, scale))
        predicted.append(predict(model, IMAGES, scale))
    for full, half in (scored, predicted):
        assert full.dtype == half.dtype == torch.float32
        assert not torch.equal(full, half)
        torch.testing.assert_close(half, full, rtol=0, atol=NEAR)
        torch.testing.assert_close(half.sum(1), torch.ones(60))
    assert mc_probabilities(pair()[1], IMAGES[:0], 5, scale).shape == (0, 3)


def test_recalibrated_statistics_are_near():
    full, half = pair()
    for name, tensor in half.state_dict().items():
        if "running" in name:
            torch.testing.assert_close(tensor, full.state_dict()[name], rtol=NEAR, atol=NEAR)


def test_training_goes_the_same_way_and_parameters_stay_float32():
    """The steps differ more than probabilities: batch norm of 16 values divides by a small one."""
    losses, steps = [], []
    targets = torch.eye(3)[torch.arange(60) % 3]
    settings = TrainSettings(batch_size=16, learning_rate=0.01)
    for model in pair(dropout=0.0):
        before = vector(model)
        shuffle = torch_stream(0, "shuffle")
        losses.append(train(model, IMAGES, targets, 60, scale, settings, 1, shuffle))
        steps.append(vector(model) - before)
        assert dtypes(model) == {torch.float32, torch.int64}
    assert losses[0] == pytest.approx(losses[1], abs=NEAR) and losses[0] != losses[1]
    assert torch.cosine_similarity(*steps, dim=0) > 0.9


def test_a_run_in_bfloat16_is_near_and_uploads_float32(tmp_path):
    """A whole run; a model of another type would be refused by the server."""
    accuracies = []
    for precision in ("float32", "bfloat16"):
        experiment = small(
            runtime__out=str(tmp_path),
            runtime__run_name=precision,
            runtime__precision=precision,
            rounds__num_rounds=2,
        )
        summary, _ = run_loopback(experiment)
        accuracies.append(summary["mean_test_accuracy"]["final"])
    assert accuracies[0] == pytest.approx(accuracies[1], abs=0.2)
