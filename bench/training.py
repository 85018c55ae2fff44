"""One local epoch of `train`, compared with a straightforward loop.

`python -m bench.training [--quick]`, on one CPU thread, ResNet-9 on Fashion-MNIST images. `ratio`
is the time over that of `train` as it is. The straightforward loop has a DataLoader that fetches
single images, normalises all images at once, reads the loss at every step and does not clip
gradients; its network and memory layout are those of `train`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import one_hot
from torch.utils.data import DataLoader, TensorDataset

from bench.command import Quick, carry_out
from bench.measure import beside, side_by_side
from bench.record import save
from bench.workload import Workload, workload
from fedapp.core.settings import TrainSettings
from fedapp.learn.losses import soft_target_loss
from fedapp.learn.networks import Network
from fedapp.learn.training import train

SETTINGS = TrainSettings()


def main(quick: Quick = False) -> None:
    """Measure and save the table."""
    data, repetitions = ("digits", 1) if quick else ("fashion_mnist", 5)
    sizes = ((4, 70), (2, 70)) if quick else ((64, 256), (8, 490))
    works = [workload(data, width, count) for width, count in sizes]
    rows = [row for work in works for row in rows_of(work, repetitions)]
    save("training", rows, quick=quick)


def rows_of(work: Workload, repetitions: int) -> list[dict[str, Any]]:
    """Time every way to train an epoch; return a row for each."""
    times = side_by_side(ways_of(work), repetitions)
    rows = beside(times, "train, as it is", width=work.width, images=len(work.images))
    for row in rows:
        row["ms_per_image"] = round(1e3 * row["median_s"] / len(work.images), 4)
    return rows


def ways_of(work: Workload) -> dict[str, Callable[[], float]]:
    """Return the two ways to train an epoch, each with its own network."""
    return {
        "train, as it is": partial(epoch, work.model(), work),
        "straightforward loop": partial(straightforward, work.model(), work),
    }


def epoch(model: Network, work: Workload) -> float:
    """Train one epoch as a site does."""
    targets = one_hot(work.labels, work.classes).float()
    shuffle = torch.Generator().manual_seed(0)
    return train(model, work.images, targets, 0, work.normalise, SETTINGS, 1, shuffle)


def straightforward(model: nn.Module, work: Workload) -> float:
    """Train one epoch in the way of a tutorial."""
    pairs = TensorDataset(work.normalise(work.images), one_hot(work.labels, work.classes).float())
    optimiser = torch.optim.SGD(model.parameters(), SETTINGS.learning_rate, SETTINGS.momentum)
    model.train()
    total = 0.0
    for images, targets in DataLoader(pairs, SETTINGS.batch_size, shuffle=True):
        loss = soft_target_loss(model(images), targets)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        total += loss.item() * len(images)
    return total / len(work.images)


if __name__ == "__main__":
    carry_out(main)
