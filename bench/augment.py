"""FixMatch's views of a mini-batch, beside the training step that they are made for.

`python -m bench.augment [--quick]`, on one CPU thread, 64 Fashion-MNIST images. ratio: time over
that of a network's forward and backward pass of the same images. A FixMatch step makes two weak
views and a strong one for three such passes. The straightforward way hands image by image to
torchvision's RandAugment.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.transforms.v2 import RandAugment

from bench.command import Quick, carry_out
from bench.measure import beside, side_by_side
from bench.record import save
from bench.workload import Workload, workload
from fedapp.data.augment import strong, weak

BASE = "forward and backward"


def main(quick: Quick = False) -> None:
    """Measure and save the table."""
    data, widths, repetitions = ("digits", (2,), 1) if quick else ("fashion_mnist", (8, 32), 15)
    works = [workload(data, width, 64) for width in widths]
    rows = [row for work in works for row in rows_of(work, repetitions)]
    save("augment", rows, quick=quick)


def rows_of(work: Workload, repetitions: int) -> list[dict[str, Any]]:
    """Time the views and a training step's passes; return their rows."""
    times = side_by_side(ways_of(work), repetitions)
    return beside(times, BASE, width=work.width, images=len(work.images))


def ways_of(work: Workload) -> dict[str, Callable[[], Tensor]]:
    """Return the passes of a network and the ways to make views."""
    model = work.model().train()
    draws = torch.Generator().manual_seed(0)
    return {
        BASE: partial(passes, model, work),
        "weak": partial(weak, work.images, True, draws),
        "strong": partial(strong, work.images, True, draws),
        "torchvision, image by image": partial(one_by_one, work.images),
    }


def passes(model: nn.Module, work: Workload) -> Tensor:
    """Compute the gradients of all weights; return the loss."""
    logits = model(work.normalise(work.images))
    loss = nn.functional.cross_entropy(logits, work.labels)
    loss.backward()
    return loss


def one_by_one(images: Tensor) -> Tensor:
    """Give each image to torchvision: two of its operations, one magnitude for all, no cutout."""
    act = RandAugment(num_ops=2)
    return torch.stack([act(image) for image in images])


if __name__ == "__main__":
    carry_out(main)
