"""Mini-batches: what a step is, and how the images of a site are cut into them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor, nn

from fedapp.core.errors import ConfigError

View = Callable[[Tensor], Tensor]
"""uint8 images -> uint8 images: a random view of each."""


@dataclass(frozen=True)
class Step:
    """A mini-batch and its loss, a function of the network that it is given.

    loss: (network, *batch) -> a scalar with its graph.
    batch: the inputs as the network takes them, and what is known of them.
    mean: whether the loss is a mean over the batch's images. Then every tensor of `batch` has a row
    for each image.
    """

    loss: Callable[..., Tensor]
    batch: tuple[Any, ...]
    mean: bool = False

    def __call__(self, network: nn.Module) -> Tensor:
        """Return the loss under the network as it is now."""
        return self.loss(network, *self.batch)

    def pieces(self, most: int) -> Iterator[tuple[float, "Step"]]:
        """Yield steps of at least two and at most `most` images, each with its share of the batch.

        The losses of the pieces, each times its share, sum to the loss of this step, unless one
        image influences the answer to another, as under batch norm. Raises ConfigError where the
        loss is not a mean over images.
        """
        images = len(self.batch[0])
        if images <= most:
            yield 1.0, self
            return
        if not self.mean:
            raise ConfigError(
                f"training.at_once = {most}: the method's loss is no mean over a batch's images, "
                "so a batch cannot be taken in pieces: set it to 0, or lower training.batch_size"
            )
        count = min(-(-images // most), images // 2)
        for batch in zip(*(tensor.tensor_split(count) for tensor in self.batch), strict=True):
            yield len(batch[0]) / images, replace(self, batch=batch)


def batches(order: Tensor, size: int) -> Iterator[Tensor]:
    """Split indices [n] into batches of nearly equal length, between two and `size` images.

    Lengths differ by at most one. A shorter last batch could hold two or three images, and batch
    norm over so few ruins the weights. Exceptions: where n is 1, the batch has one image; three
    images at size 2 stay together.
    """
    count = min(-(-len(order) // size), max(len(order) // 2, 1))
    yield from order.tensor_split(count) if len(order) else ()


def repeated(epoch: Callable[[], Iterator[Step]], epochs: int, steps: int | None) -> Iterator[Step]:
    """Yield the mini-batches of `epochs` passes or, if `steps` is not None, that many mini-batches.

    epoch: starts a pass in a new order; the pass may be empty.
    """
    if steps is None:
        yield from chain.from_iterable(epoch() for _ in range(epochs))
        return
    while steps > 0:
        before = steps
        for step in islice(epoch(), steps):
            yield step
            steps -= 1
        if steps == before:
            return


def paired(
    labelled: int, total: int, size: int, shuffle: torch.Generator, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield one epoch of mini-batches of both kinds: indices of labelled and of unlabelled images.

    Images 0 ... labelled - 1 are labelled, those from there to `total` are not; there are both
    kinds. The larger part is cut into `batches` and seen once. The smaller part contributes equally
    many images to each step, or all that it has, and repeats as often as necessary.
    """
    lengths = (labelled, total - labelled)
    largest = max(lengths)
    take = [len(batch) for batch in batches(torch.arange(largest), size)]
    parts = []
    for start, length in zip((0, labelled), lengths, strict=True):
        sizes = [min(n, length) for n in take]
        rounds = -(-sum(sizes) // length)
        order = torch.cat([torch.randperm(length, generator=shuffle) for _ in range(rounds)])
        indices = (order[: sum(sizes)] + start).to(device, non_blocking=True)
        parts.append(indices.split(sizes))
    yield from zip(*parts, strict=True)
