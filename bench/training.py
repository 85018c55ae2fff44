"""One local epoch of `train`, compared with a straightforward loop and with other ways to do it.

`python -m bench.training [--quick]`, on one CPU thread, ResNet-9 on Fashion-MNIST images. `ratio`
is the time over that of `train` as it is. The straightforward loop has a DataLoader that fetches
single images, normalises all images at once, reads the loss at every step and does not clip
gradients; its network and memory layout are those of `train`.
"""

import shutil
from collections.abc import Callable
from functools import partial
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import nn
from torch.nn.functional import one_hot
from torch.utils.data import DataLoader, TensorDataset

from bench.command import Quick, carry_out
from bench.measure import beside, side_by_side
from bench.record import save
from bench.workload import Workload, standard_layout, workload
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
    compiler = not quick and shutil.which("c++") is not None
    rows = [row for work in works for row in rows_of(work, repetitions, compiler)]
    save("training", rows, quick=quick)


def rows_of(work: Workload, repetitions: int, compiler: bool) -> list[dict[str, Any]]:
    """Time every way to train an epoch; return a row for each."""
    times = side_by_side(ways_of(work, compiler), repetitions)
    rows = beside(times, "train, as it is", width=work.width, images=len(work.images))
    for row in rows:
        row["ms_per_image"] = round(1e3 * row["median_s"] / len(work.images), 4)
    return rows


def ways_of(work: Workload, compiler: bool) -> dict[str, Callable[[], float]]:
    """Return the ways to train an epoch, each with its own network."""
    ways: dict[str, Callable[[], float]] = {
        "train, as it is": partial(epoch, work.model(), work),
        "straightforward loop": partial(straightforward, work.model(), work),
        "not channels-last": partial(in_rows, epoch, in_rows(work.model), work),
        "SGD for all tensors at once (foreach)": partial(
            with_sgd, work.model(), work, foreach=True
        ),
        "SGD in one kernel (fused)": partial(with_sgd, work.model(), work, fused=True),
        "ReLU in place": partial(in_place, work.model(), work),
        "bfloat16": partial(epoch, work.model(torch.bfloat16), work),
    }
    if compiler:
        compiled = cast("Network", torch.compile(work.model()))
        ways["torch.compile"] = partial(epoch, compiled, work)
    return ways


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


def in_rows(act: Callable[..., Any], *args: object) -> Any:
    """Build or train a network in torch's standard layout."""
    with standard_layout():
        return act(*args)


def with_sgd(model: Network, work: Workload, **how: bool) -> float:
    """Train with another implementation of SGD."""
    plain = torch.optim.SGD

    def other(*args: Any, **kwargs: Any) -> torch.optim.SGD:
        return plain(*args, **{**kwargs, "fused": None, **how})

    with patch.object(torch.optim, "SGD", other):
        return epoch(model, work)


def in_place(model: Network, work: Workload) -> float:
    """Train with ReLUs that overwrite their input."""
    with patch.object(nn.functional, "relu", nn.functional.relu_):
        return epoch(model, work)


if __name__ == "__main__":
    carry_out(main)
