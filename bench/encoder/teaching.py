"""Training of an encoder: with labels, or from images alone."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.transforms import v2

from bench.encoder.body import small
from fedapp.data.augment import weak
from fedapp.data.inputs import DataSet
from fedapp.ground.rng import seeded, torch_stream
from fedapp.learn.networks.resnet9 import ResNet9

SCALE = 0.5
"""mean and std of every colour, as the file says."""
RATE = 0.05
LABELLED, ALONE = 128, 256
"""Images of a batch, with labels and without."""
ALIKE = 8
"""Images that are cropped and coloured alike; the two views of an image are not."""
TEMPERATURE = 0.2
CALM = 0.125
"""By which logits are multiplied: those of a maximum over pixels begin large."""
CODE = 128
"""Numbers of the projection, which is thrown away (SimCLR, Sec. 3)."""

Loss = Callable[[ResNet9, Tensor], Tensor]
"""The places of a batch -> its loss."""


def with_labels(data: DataSet, flip: bool, seed: int) -> tuple[ResNet9, Loss]:
    """Return a network and its loss: cross-entropy of weak views."""
    network, draws = small(), torch_stream(seed, "encoder views")
    network.head = nn.Linear(network.features, len(data.classes))

    def loss(network: ResNet9, batch: Tensor) -> Tensor:
        images = weak(data.inputs[batch], flip, draws)
        return F.cross_entropy(CALM * network(scaled(images)), data.labels[batch])

    return network, loss


def from_images(data: DataSet, flip: bool) -> tuple[ResNet9, Loss]:
    """Return a network and SimCLR's loss (Chen et al. 2020, eq. 1): which two are of one image?"""
    network, side = small(), data.inputs.shape[2]
    network.head = nn.Sequential(  # type: ignore[assignment]
        nn.Linear(network.features, CODE), nn.ReLU(), nn.Linear(CODE, CODE)
    )
    changed = v2.Compose([
        v2.RandomResizedCrop(side, scale=(0.2, 1.0), antialias=False),
        v2.RandomHorizontalFlip(0.5 if flip else 0.0),
        v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8),
        v2.RandomGrayscale(0.2),
    ])  # fmt: skip

    def loss(network: ResNet9, batch: Tensor) -> Tensor:
        images = data.inputs[batch].expand(-1, 3, -1, -1)
        views = torch.cat([changed(some) for _ in range(2) for some in images.split(ALIKE)])
        return contrast(network(scaled(views)))

    return network, loss


def contrast(codes: Tensor) -> Tensor:
    """Return NT-Xent of codes [2 n, d], of which i and n + i are of one image."""
    codes = F.normalize(codes, dim=1)
    alike = codes @ codes.T / TEMPERATURE
    alike.fill_diagonal_(-torch.inf)
    return F.cross_entropy(alike, torch.arange(len(codes)).roll(len(codes) // 2))


def scaled(images: Tensor) -> Tensor:
    """Return uint8 [n, 1 or 3, h, w] as the encoder takes them."""
    x = (images.float() / 255).expand(-1, 3, -1, -1)
    return (x - SCALE) / SCALE


def taught(data: DataSet, how: str, flip: bool, epochs: int, seed: int) -> ResNet9:
    """Train; how: "supervised", or "self-supervised". Each pass's mean loss is printed."""
    size = LABELLED if how == "supervised" else ALONE
    with seeded(torch.device("cpu"), seed, "encoder"):
        network, loss = (
            with_labels(data, flip, seed) if how == "supervised" else from_images(data, flip)
        )
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        steps = len(data.labels) // size
        learns = torch.optim.SGD(
            network.parameters(), RATE, momentum=0.9, weight_decay=5e-4, nesterov=True
        )
        rate = torch.optim.lr_scheduler.OneCycleLR(learns, RATE, total_steps=max(2, epochs * steps))
        for epoch in range(epochs):
            total = 0.0
            for batch in torch.randperm(len(data.labels)).split(size)[:steps]:
                found = loss(network, batch)
                learns.zero_grad()
                found.backward()
                learns.step()
                rate.step()
                total += found.item()
            print(f"epoch {epoch + 1}/{epochs}: loss {total / steps:.3f}", flush=True)
    return network
