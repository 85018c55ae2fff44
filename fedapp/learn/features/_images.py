"""What feature maps of images share: accepted sizes, downscaling, and means over grid cells."""

from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MIN_SIDE, MAX_SIDE, MAX_CHANNELS = 8, 1024, 4
WORKING_SIDE: Final = 32
"""Least number of pixels of the shorter side to which a larger image is averaged."""
MAX_PIXEL: Final = 1e6
"""Bound to which pixels are clamped; ordinary ones are below 10."""


def image_misfit(name: str, inputs: tuple[int, ...]) -> str:
    """Return why image features cannot take inputs of this shape, and the remedy; empty if fine."""
    if len(inputs) != 3 or not 1 <= inputs[0] <= MAX_CHANNELS:
        return f"{name} takes images of 1 to {MAX_CHANNELS} channels; take auto or plain"
    if not all(MIN_SIDE <= side <= MAX_SIDE for side in inputs[1:]):
        return (
            f"{name} takes images of {MIN_SIDE} to {MAX_SIDE} pixels a side; change data.image_size"
        )
    return ""


class WorkingSize(nn.Module):
    """Averages an image with 64 pixels or more on its shorter side so that 32 to 63 are left.

    The factor is a whole number; up to factor - 1 pixels are cut off at the edges.
    """

    sides: tuple[int, int]
    """Height and width of the result."""

    def __init__(self, inputs: tuple[int, ...]) -> None:
        super().__init__()
        _, height, width = inputs
        self.by = max(1, min(height, width) // WORKING_SIDE)
        self.sides = height // self.by, width // self.by
        self.top, self.left = height % self.by // 2, width % self.by // 2

    def forward(self, x: Tensor) -> Tensor:
        """Return the smaller images, with values clamped to +-`MAX_PIXEL`."""
        x = x.clamp(-MAX_PIXEL, MAX_PIXEL)
        if self.by == 1:
            return x
        return F.avg_pool2d(x[..., self.top :, self.left :], self.by)


class Cells(nn.Module):
    """Means over a grid of equal cells. Only the part of a cell inside the image counts."""

    def __init__(self, sides: tuple[int, int], most: int) -> None:
        super().__init__()
        self.cell = tuple(-(-side // most) for side in sides)
        grid = tuple(-(-side // cell) for side, cell in zip(sides, self.cell, strict=True))
        self.count = grid[0] * grid[1]
        spare = [n * c - side for n, c, side in zip(grid, self.cell, sides, strict=True)]
        self.pad = (spare[1] // 2, -(-spare[1] // 2), spare[0] // 2, -(-spare[0] // 2))
        inside = F.avg_pool2d(F.pad(torch.ones(1, 1, *sides), self.pad), self.cell)
        self.inside: Tensor
        self.register_buffer("inside", inside, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean of x, [n, channels, height, width], over the pixels of each cell."""
        means: Tensor = F.avg_pool2d(F.pad(x, self.pad), self.cell) / self.inside
        return means
