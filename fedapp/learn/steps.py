"""Mini-batches: how a site's images are cut into them, and what a step is."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor, nn

from fedapp.core.errors import ConfigError

View = Callable[[Tensor], Tensor]
"""uint8 images -> uint8 images, a random view of each."""


@dataclass(frozen=True)
class Step:
    """A mini-batch and its loss: a function of the network, whichever it is given.

    loss: of a network and the batch, a scalar with its graph. batch: inputs as the network takes
    them, and what is known of them. mean: the loss is a mean over the batch's images, of which each
    tensor in it has a row.
    """

    loss: Callable[..., Tensor]
    batch: tuple[Any, ...]
    mean: bool = False

    def __call__(self, network: nn.Module) -> Tensor:
        """Return the loss under the network as it is."""
        return self.loss(network, *self.batch)

    def pieces(self, most: int) -> Iterator[tuple[float, "Step"]]:
        """Yield steps of at most `most` images, at least two, and the share of all that each has.

        The losses, each times its share, add up to this step's where no image counts in another's
        answer, as under batch norm. Raises ConfigError where the loss is no mean over images.
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
    """Split indices [n] into batches of equal length, to within one: at most `size`, at least two.

    A last batch of what remains would hold two or three images, and batch norm over so few wrecks
    the weights. Where n is 1 the batch has one image; 3 images at size 2 stay together.
    """
    count = min(-(-len(order) // size), max(len(order) // 2, 1))
    yield from order.tensor_split(count) if len(order) else ()


def repeated(epoch: Callable[[], Iterator[Step]], epochs: int, steps: int | None) -> Iterator[Step]:
    """Yield the mini-batches of `epochs` passes or, unless `steps` is None, that many.

    epoch: one pass in a new order; it may be empty.
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
    """One epoch of mini-batches of both kinds of images: indices of labelled ones, of others.

    Images 0 ... labelled - 1 have labels, the others up to `total` have none; there are both. The
    larger part is cut into `batches` and seen once; the smaller gives as many images to each step,
    or all that it has, and is seen as often as it takes.
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
