"""Histograms of oriented gradients (Dalal & Triggs 2005), beside the mean intensities of cells.

An image with 64 pixels or more on its shorter side is first reduced by averaging. Gradients are
central differences; of several channels, the longest gradient counts. Each gradient is decomposed
into the two nearest of eight directions that are 45 degrees apart: (3, 1) is 2 to the right plus
sqrt(2) times the direction (1, 1) / sqrt(2). These parts are averaged over cells of two sizes. The
square roots of the averages, over all cells of one size, are scaled to norm 1. The mean intensities
of the cells, minus the image's mean, over all channels, are scaled in the same way and get half
that weight.

The result does not depend on an image's brightness or contrast; a uniform image has zeros.
DEVIATION: there are no blocks of neighbouring cells; the square root and the norm take their place.
"""

from typing import ClassVar, Final, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedapp.learn.features._images import Cells, WorkingSize
from fedapp.learn.features.base import BELOW_ONE, FeatureMap, unit_rows
from fedapp.learn.networks.base import Network

DIRECTIONS: Final = 8
CELLS_PER_SIDE: Final = (8, 4)
"""Cells along a side, at most: of the finer and of the coarser grid."""
INTENSITY_WEIGHT: Final = 0.5
"""Weight of mean intensities relative to gradients."""
MIN_CONTRAST: Final = 0.01
"""Contrast below which intensities count less. The smallest step of a pixel is 0.01 or more."""


class Hog(FeatureMap):
    """An image has at most 80 x (8 + channels) features: 720 if grey, 880 in colour."""

    name: ClassVar[str] = "hog"
    of_images: ClassVar[bool] = True

    def __init__(self, inputs: tuple[int, ...]) -> None:
        super().__init__()
        self.working = WorkingSize(inputs)
        grids = [Cells(self.working.sides, most) for most in CELLS_PER_SIDE]
        self.grids = nn.ModuleList(grids)
        self.size = sum(grid.count for grid in grids) * (DIRECTIONS + inputs[0])

    @classmethod
    def build(cls, inputs: tuple[int, ...], seed: int, network: Network | None) -> Self:
        """Build the map. It draws nothing at random."""
        return cls(inputs)

    def forward(self, x: Tensor) -> Tensor:
        """float32 [n, channels, height, width] -> float32 [n, size], of norm 1 at most."""
        x = self.working(x)
        parts = []
        shares = in_directions(*gradients(x))
        for cells in self.grids:
            parts.append(unit_rows(cells(shares).flatten(1).sqrt()))
            levels = cells(x).flatten(1)
            levels = levels - levels.mean(1, keepdim=True)
            parts.append(INTENSITY_WEIGHT * unit_rows(levels, MIN_CONTRAST))
        whole = (len(CELLS_PER_SIDE) * (1 + INTENSITY_WEIGHT**2)) ** 0.5
        out: Tensor = torch.cat(parts, 1) * (BELOW_ONE / whole)
        return out


def gradients(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the longest gradient over all channels: to the right and down, each [n, 1, h, w].

    Outside the image its outermost pixels are repeated.
    """
    wide = F.pad(x, (1, 1, 1, 1), mode="replicate")
    right = wide[..., 1:-1, 2:] - wide[..., 1:-1, :-2]
    down = wide[..., 2:, 1:-1] - wide[..., :-2, 1:-1]
    if x.shape[1] == 1:
        return right, down
    length = right.square() + down.square()
    across, along, longest = right[:, :1], down[:, :1], length[:, :1]
    for channel in range(1, x.shape[1]):
        here = slice(channel, channel + 1)
        longer = length[:, here] > longest
        across = torch.where(longer, right[:, here], across)
        along = torch.where(longer, down[:, here], along)
        longest = torch.where(longer, length[:, here], longest)
    return across, along


def in_directions(right: Tensor, down: Tensor) -> Tensor:
    """Return the shares of gradients in eight directions: [n, 1, h, w] each -> [n, 8, h, w].

    Clockwise from the right: 0, 45, ..., 315 degrees. Shares are at least 0, two at most are not 0,
    and times their directions they add up to the gradient.
    """
    straight = [F.relu(a - b.abs()) for a, b in ((right, down), (down, right))]
    back = [F.relu(-a - b.abs()) for a, b in ((right, down), (down, right))]
    slant = [
        F.relu(torch.minimum(a, b)) * 2**0.5
        for a, b in ((right, down), (-right, down), (-right, -down), (right, -down))
    ]
    return torch.cat(
        (straight[0], slant[0], straight[1], slant[1], back[0], slant[2], back[1], slant[3]), 1
    )


FEATURES = Hog
