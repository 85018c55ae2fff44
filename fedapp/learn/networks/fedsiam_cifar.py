"""The network of FedSiam on CIFAR-10 and SVHN: six convolutions in three pairs, two hidden layers.

5,852,170 parameters for images of 3 x 32 x 32 and 10 classes. Dropout is where the authors' code
has it: channel dropout after the second pair, and dropout before the first hidden layer and before
the head.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedapp.core.settings import CLOSED, Rate
from fedapp.learn.networks.base import (
    Draw,
    Features,
    Network,
    NetworkSettings,
    drop,
    drop_channels,
)


class Pair(nn.Module):
    """Two 3x3 convolutions with ReLU, the first with batch norm, and a pool of 2."""

    def __init__(self, channels_in: int, middle: int, channels_out: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, middle, 3, padding=1)
        self.norm = nn.BatchNorm2d(middle)
        self.conv2 = nn.Conv2d(middle, channels_out, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels_in, h, w] -> [n, channels_out, h // 2, w // 2]."""
        x = F.relu(self.norm(self.conv1(x)))
        return F.max_pool2d(F.relu(self.conv2(x)), 2)


class FedSiamCifar(Network):
    """Images float [n, channels, h, w] -> logits float32 [n, num_classes].

    The features are the second pair's output.
    """

    def __init__(
        self, inputs: tuple[int, ...], num_classes: int, dropout: float, channel_dropout: float
    ) -> None:
        super().__init__()
        channels, height, width = inputs
        self.pair1 = Pair(channels, 32, 64)
        self.pair2 = Pair(64, 128, 128)
        self.channel_dropout = nn.Dropout2d(channel_dropout)
        self.pair3 = Pair(128, 256, 256)
        self.fc1 = nn.Linear(256 * (height // 8) * (width // 8), 1024)
        self.fc2 = nn.Linear(1024, 512)
        self.end_in(512, num_classes, dropout)

    def trunk(self, x: Tensor) -> Features:
        """Run the first two pairs."""
        with self.in_compute_type(x.device):
            x = x.contiguous(memory_format=torch.channels_last)
            return (self.pair2(self.pair1(x)),)

    def embed(self, features: Features, dropout: Draw | None = None) -> Tensor:
        """Run the layers between the channel dropout and the head: [n, 512]."""
        [h] = features
        with self.in_compute_type(h.device):
            h = self.pair3(drop_channels(self.channel_dropout, h, dropout))
            h = F.relu(self.fc1(drop(self.dropout, h.flatten(1), dropout)))
            return drop(self.dropout, F.relu(self.fc2(h)), dropout)


@dataclass(frozen=True, config=CLOSED)
class FedSiamCifarSettings(NetworkSettings):
    """For coloured images of 32 x 32."""

    name: ClassVar[str] = "fedsiam_cifar"
    sides: ClassVar[tuple[int, int] | None] = (8, 96)

    dropout: Rate = 0.1
    """p before the first hidden layer and before the head."""
    channel_dropout: Rate = 0.05
    """p of whole channels after the second pair of convolutions."""

    def network(self, inputs: tuple[int, ...], num_classes: int) -> FedSiamCifar:
        """Build the network. The images' size determines the inputs of the first hidden layer."""
        return FedSiamCifar(inputs, num_classes, self.dropout, self.channel_dropout)


NETWORK = FedSiamCifarSettings
