"""The network of FedSiam on MNIST: two convolutions and one hidden layer; 21,840 parameters there.

The paper does not mention dropout. The authors' code has channel dropout after the second
convolution and dropout before the head, which are the only noise on the inputs.
"""

from typing import ClassVar

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


class FedSiamMnist(Network):
    """Images float [n, channels, h, w] -> logits float32 [n, num_classes].

    The features are the second convolution's output.
    """

    def __init__(self, inputs: tuple[int, ...], num_classes: int, dropout: float) -> None:
        super().__init__()
        channels, height, width = inputs
        self.conv1 = nn.Conv2d(channels, 10, 5)
        self.conv2 = nn.Conv2d(10, 20, 5)
        self.channel_dropout = nn.Dropout2d(dropout)
        self.fc = nn.Linear(20 * _conv_output(height) * _conv_output(width), 50)
        self.end_in(50, num_classes, dropout)

    def trunk(self, x: Tensor) -> Features:
        """Run both convolutions."""
        with self.in_compute_type(x.device):
            x = F.relu(F.max_pool2d(self.conv1(x), 2))
            return (self.conv2(x),)

    def embed(self, features: Features, dropout: Draw | None = None) -> Tensor:
        """Run the layers between the channel dropout and the head: [n, 50]."""
        [h] = features
        with self.in_compute_type(h.device):
            h = drop_channels(self.channel_dropout, h, dropout)
            h = F.relu(F.max_pool2d(h, 2))
            h = F.relu(self.fc(h.flatten(1)))
            return drop(self.dropout, h, dropout)


def _conv_output(side: int) -> int:
    """Return what two unpadded 5 x 5 convolutions, each with a pool of 2, leave of a side."""
    return ((side - 4) // 2 - 4) // 2


@dataclass(frozen=True, config=CLOSED)
class FedSiamMnistSettings(NetworkSettings):
    """Small, for grey images of 28 x 28."""

    name: ClassVar[str] = "fedsiam_mnist"
    sides: ClassVar[tuple[int, int] | None] = (16, 96)

    dropout: Rate = 0.5
    """p of whole channels after the second convolution, and of values before the head."""

    def network(self, inputs: tuple[int, ...], num_classes: int) -> FedSiamMnist:
        """Build the network. The size of the images determines the inputs of the hidden layer."""
        return FedSiamMnist(inputs, num_classes, self.dropout)


NETWORK = FedSiamMnistSettings
