"""The network of FedUL on MNIST: three 5 x 5 convolutions, two hidden layers, each with batch norm.

14,219,210 parameters for images of 3 x 28 x 28 and 10 classes. The paper's text calls it LeNet;
this is the network of the authors' code, which has no dropout. Here dropout before the head can be
set.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedapp.core.settings import CLOSED, Rate
from fedapp.learn.networks.base import Features, Network, NetworkSettings


class FedULMnist(Network):
    """Images float [n, channels, h, w] -> logits float32 [n, num_classes].

    The features are the second hidden layer's output [n, 512].
    """

    def __init__(self, inputs: tuple[int, ...], num_classes: int, dropout: float) -> None:
        super().__init__()
        channels, height, width = inputs
        self.conv1, self.norm1 = nn.Conv2d(channels, 64, 5, padding=2), nn.BatchNorm2d(64)
        self.conv2, self.norm2 = nn.Conv2d(64, 64, 5, padding=2), nn.BatchNorm2d(64)
        self.conv3, self.norm3 = nn.Conv2d(64, 128, 5, padding=2), nn.BatchNorm2d(128)
        self.fc1 = nn.Linear(128 * (height // 4) * (width // 4), 2048)
        self.norm4 = nn.BatchNorm1d(2048)
        self.fc2, self.norm5 = nn.Linear(2048, 512), nn.BatchNorm1d(512)
        self.end_in(512, num_classes, dropout)

    def trunk(self, x: Tensor) -> Features:
        """Run all layers except dropout and head."""
        with self.in_compute_type(x.device):
            x = x.contiguous(memory_format=torch.channels_last)
            x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
            x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
            x = F.relu(self.norm3(self.conv3(x)))
            x = F.relu(self.norm4(self.fc1(x.flatten(1))))
            return (F.relu(self.norm5(self.fc2(x))),)


@dataclass(frozen=True, config=CLOSED)
class FedULMnistSettings(NetworkSettings):
    """Large, for images of 28 x 28; the authors copy MNIST's one channel to three."""

    name: ClassVar[str] = "fedul_mnist"
    sides: ClassVar[tuple[int, int] | None] = (8, 96)

    dropout: Rate = 0.0
    """p before the head."""

    def network(self, inputs: tuple[int, ...], num_classes: int) -> FedULMnist:
        """Build the network. The images' size determines the inputs of the first hidden layer."""
        return FedULMnist(inputs, num_classes, self.dropout)


NETWORK = FedULMnistSettings
