"""The networks, and the two ways to make one: built and initialised from a keyed draw."""

import torch

from fedapp.ground.rng import seeded
from fedapp.ground.settings import ModelSettings
from fedapp.learn.networks.resnet9 import ResNet9
from fedapp.learn.params import Params

__all__ = ["ResNet9", "build_model", "initial_params"]


def build_model(
    settings: ModelSettings,
    channels: int,
    num_classes: int,
    compute: torch.dtype = torch.float32,
) -> ResNet9:
    """Build the network for images of 1 or 3 channels; its weights are arbitrary.

    compute: float32, or bfloat16 for its convolutions and head.
    """
    network = ResNet9(channels, num_classes, settings.width, settings.dropout, compute)
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def initial_params(settings: ModelSettings, channels: int, num_classes: int, seed: int) -> Params:
    """Return w_0, the same on every machine with the same torch version."""
    with seeded(torch.device("cpu"), seed, "initial model"):
        model = build_model(settings, channels, num_classes)
        return {name: tensor.clone() for name, tensor in model.state_dict().items()}
