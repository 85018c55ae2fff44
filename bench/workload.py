"""What the benchmarks of scoring and training work on: images and a network."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fedapp.core.settings import DataSettings
from fedapp.data.datasets import load_dataset
from fedapp.data.inputs import normalise
from fedapp.learn.networks import Network, build_model
from fedapp.learn.networks.resnet9 import ResNet9Settings
from fedapp.learn.training import recalibrate


@dataclass(frozen=True)
class Workload:
    """A ResNet-9 of a width, and images for it: uint8 [n, c, h, w], labels int64 [n]."""

    width: int
    images: Tensor
    labels: Tensor
    classes: int
    normalise: Callable[[Tensor], Tensor]

    def model(self, compute: torch.dtype = torch.float32) -> Network:
        """Return a network with the same weights each time, on the images' device.

        The statistics of its batch norms are those of the images.
        """
        torch.manual_seed(0)
        settings, inputs = ResNet9Settings(width=self.width), tuple(self.images.shape[1:])
        model = build_model(settings, inputs, self.classes, compute).to(self.images.device)
        recalibrate(model, self.images, self.normalise)
        return model


def workload(data: str, width: int, count: int) -> Workload:
    """Return the first `count` images of a data set with a network; limit torch to one thread."""
    torch.set_num_threads(1)
    pool = load_dataset(DataSettings(name=data), seed=0)
    scale = partial(normalise, mean=pool.mean, std=pool.std)
    return Workload(width, pool.inputs[:count], pool.labels[:count], len(pool.classes), scale)
