"""ResNet-9 with MC dropout, split at its first dropout.

The topology is that of the well-known "ResNet-9" (convolutions of 1-2-2-4-8 x width, residual pairs
at 2x and 8x width, global max pooling, a linear head). Dropout comes after the last two norms
(paper, Sec. VI-A). The paper also has dropout in hidden fully connected layers, which this network
does not have.
"""

from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedapp.core.settings import CLOSED, Rate
from fedapp.learn.networks.base import Draw, Features, Network, NetworkSettings, drop

Norm = Literal["batch", "group", "none"]
GROUP_SIZE = 16
"""Channels in a group of group norm; as good as other numbers (Wu, He 2018, Table 3)."""


def norm_of(kind: Norm, channels: int) -> nn.Module:
    """Return a normalisation layer for this number of channels.

    Group norm has groups of `GROUP_SIZE` channels, or a single group where the number of channels
    is not a multiple. In a narrow network a group could otherwise be one channel with one pixel,
    which would always be normalised to 0.
    """
    if kind == "none":
        return nn.Identity()
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(channels // GROUP_SIZE if channels % GROUP_SIZE == 0 else 1, channels)


class ConvNorm(nn.Module):
    """3x3 convolution without bias, then a norm."""

    def __init__(self, channels_in: int, channels_out: int, norm: Norm) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)
        self.norm = norm_of(norm, channels_out)
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_in", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels_in, h, w] -> [n, channels_out, h, w], before any activation."""
        out: Tensor = self.norm(self.conv(x))
        return out


class ResNet9(Network):
    """Images float [n, channels, h, w], h and w in [8, 96] -> logits float32 [n, num_classes].

    The features are the output of the first norm of the last residual block, and the block's skip
    input.
    """

    def __init__(
        self, channels: int, num_classes: int, width: int, dropout: float, norm: Norm = "batch"
    ) -> None:
        super().__init__()
        w = width
        self.stem = ConvNorm(channels, w, norm)
        self.down1 = ConvNorm(w, 2 * w, norm)
        self.res1 = nn.ModuleList([ConvNorm(2 * w, 2 * w, norm), ConvNorm(2 * w, 2 * w, norm)])
        self.down2 = ConvNorm(2 * w, 4 * w, norm)
        self.down3 = ConvNorm(4 * w, 8 * w, norm)
        self.res2 = nn.ModuleList([ConvNorm(8 * w, 8 * w, norm), ConvNorm(8 * w, 8 * w, norm)])
        self.end_in(8 * w, num_classes, dropout)

    def trunk(self, x: Tensor) -> Features:
        """Run all layers in front of the first dropout."""
        with self.in_compute_type(x.device):
            x = x.contiguous(memory_format=torch.channels_last)  # 1.4 times faster on a CPU
            x = F.relu(self.stem(x))
            x = F.max_pool2d(F.relu(self.down1(x)), 2)
            x = x + F.relu(self.res1[1](F.relu(self.res1[0](x))))
            x = F.max_pool2d(F.relu(self.down2(x)), 2)
            x = F.max_pool2d(F.relu(self.down3(x)), 2)
            return self.res2[0](x), x

    def embed(self, features: Features, dropout: Draw | None = None) -> Tensor:
        """Run the layers between the first dropout and the head: [n, 8 width]."""
        h, skip = features
        with self.in_compute_type(h.device):
            h = F.relu(drop(self.dropout, h, dropout))
            h = skip + F.relu(drop(self.dropout, self.res2[1](h), dropout))
            # Not adaptive pooling: on a GPU its gradients are summed in an arbitrary order.
            return F.max_pool2d(h, h.shape[-2:]).flatten(1)


@dataclass(frozen=True, config=CLOSED)
class ResNet9Settings(NetworkSettings):
    """The paper's network."""

    name: ClassVar[str] = "resnet9"
    sides: ClassVar[tuple[int, int] | None] = (8, 96)

    width: Annotated[int, Field(ge=1, le=512)] = 64
    """Channels of the first layer; 64 = about 6.6 M parameters."""
    dropout: Rate = 0.5
    """p, dropout rate after the last two norms."""
    norm: Norm = "batch"
    """Normalisation after every convolution. group: no running statistics, and in training an
    image's answer depends on this image only; none: as in FedMatch and ProtoFSSL.
    """

    def network(self, inputs: tuple[int, ...], num_classes: int) -> ResNet9:
        """Build the network for images with this number of channels and any size."""
        return ResNet9(inputs[0], num_classes, self.width, self.dropout, self.norm)


NETWORK = ResNet9Settings
