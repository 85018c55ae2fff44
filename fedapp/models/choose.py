"""Which images a person should label first: unsure ones that are unlike each other."""

from typing import Final

import torch
from torch import Tensor

POOL: Final = 4
"""Times as many unsure images as are wanted, among which unlike ones are sought."""


def candidates(mutual_information: Tensor, entropy: Tensor, count: int) -> Tensor:
    """Return the images to choose `count` >= 1 from: int64 [min(n, POOL count)], most unsure first.

    mutual_information, entropy: [n], nats. Of equal mutual information, as of a network without
    dropout, those of higher entropy are first; then by number.
    """
    order = entropy.argsort(descending=True, stable=True)
    order = order[mutual_information[order].argsort(descending=True, stable=True)]
    return order[: POOL * count]


def spread(points: Tensor, count: int) -> Tensor:
    """Return `count` points that are far apart, int64 [min(n, count)], in the order of choice.

    points: float [n, D], n >= 1. Greedy k-centre (Gonzalez 1985; Sener, Savarese 2018): the first
    point, then always the one farthest from those chosen; of equally far ones the first. At most
    twice as far from every point as the best choice of as many.
    """
    chosen = [0]
    far = torch.full((len(points),), torch.inf)
    while len(chosen) < min(count, len(points)):
        far = torch.minimum(far, (points - points[chosen[-1]]).square().sum(1))
        far[chosen] = -1  # not again, though others may be equal to it
        chosen.append(int(far.argmax()))
    return torch.tensor(chosen)
