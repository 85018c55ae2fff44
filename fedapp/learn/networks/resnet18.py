"""torchvision's ResNet-18 with a new head and dropout in front of it.

11,181,642 parameters for 10 classes. Its tensors have torchvision's names, except that `fc` is
`head`.
"""

from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedapp.core.errors import Contradiction
from fedapp.core.settings import CLOSED, Rate
from fedapp.learn.networks._weights import load_body, read_weights
from fedapp.learn.networks.base import Features, Network, NetworkSettings


class ResNet18(Network):
    """Images float [n, channels, h, w] -> logits float32 [n, num_classes].

    The features are the last stage's output averaged over all places, [n, 512].
    """

    def __init__(self, channels: int, num_classes: int, dropout: float) -> None:
        super().__init__()
        from torchvision.models import resnet18  # takes seconds; most runs do not need it

        body = resnet18(weights=None, num_classes=num_classes)
        if channels != 3:
            body.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
            nn.init.kaiming_normal_(body.conv1.weight, mode="fan_out", nonlinearity="relu")
        self.conv1, self.bn1 = body.conv1, body.bn1
        self.layer1, self.layer2 = body.layer1, body.layer2
        self.layer3, self.layer4 = body.layer3, body.layer4
        self.dropout = nn.Dropout(dropout)
        self.features = body.fc.in_features
        self.head = body.fc

    def trunk(self, x: Tensor) -> Features:
        """Run all layers except dropout and head."""
        with self.in_compute_type(x.device):
            x = x.contiguous(memory_format=torch.channels_last)
            x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, stride=2, padding=1)
            x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
            return (F.adaptive_avg_pool2d(x, 1).flatten(1),)


@dataclass(frozen=True, config=CLOSED)
class ResNet18Settings(NetworkSettings):
    """For images of up to 512 x 512, from random weights or from a file's."""

    name: ClassVar[str] = "resnet18"
    sides: ClassVar[tuple[int, int] | None] = (8, 512)

    dropout: Rate = 0.5
    """p before the head."""
    weights: str = ""
    """File on this machine, .safetensors or .pth, from which w_0 takes everything except the head.
    """
    weights_sha256: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")] = ""
    """SHA-256 of that file, in hex; empty: w_0 is random."""

    def __post_init__(self) -> None:
        if self.weights and not self.weights_sha256:
            rule = "weights needs weights_sha256: what `sha256sum FILE` says of the file"
            raise Contradiction(rule, "weights", "weights_sha256")

    def network(self, inputs: tuple[int, ...], num_classes: int) -> ResNet18:
        """Build the network for images with this number of channels and any size."""
        return ResNet18(inputs[0], num_classes, self.dropout)

    def started(self, network: Network) -> Network:
        """Load the file if there is one. A head in it is ignored.

        For grey images, the kernels of the first layer are summed over the three colours: this
        gives the same answer as an image with three equal channels.
        """
        if self.weights_sha256:
            first, names = "conv1.weight", network.state_dict().keys()
            tensors = read_weights(self.weights, self.weights_sha256, names)
            grey = network.get_parameter(first).shape[1] == 1
            if grey and first in tensors and tensors[first].ndim == 4:
                tensors[first] = tensors[first].sum(1, keepdim=True)
            body = {n: tensor for n, tensor in tensors.items() if not n.startswith("fc.")}
            load_body(network, body, self.weights, own="head.")
        return network


NETWORK = ResNet18Settings
