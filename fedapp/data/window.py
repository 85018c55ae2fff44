"""From an image's values to 256 levels of grey: what is called its window.

DICOM PS3.3 C.11.2.1.2 (linear, exactly linear, sigmoid) and C.11.2.1.1 (tables).
"""

from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

Values = NDArray[Any]
"""[H, W], whole numbers or finite floats."""
Levels = NDArray[np.uint8]
"""[H, W]: 0 is black, 255 white."""


class Window(Protocol):
    """Turns values into levels, and knows which values it tells apart."""

    def __call__(self, values: Values) -> Levels:
        """Return the levels, rounded to the nearest."""

    @property
    def ends(self) -> tuple[float, float]:
        """The values between which levels differ, the lower first."""


@dataclass(frozen=True)
class Ramp:
    """y = 255 (x - low) / (high - low), cut off at 0 and 255.

    low, high: finite, low <= high; where they are equal, values above become 255 and others 0.
    """

    low: float
    high: float

    @classmethod
    def of_dicom(cls, centre: float, width: float) -> Self:
        """Return DICOM's LINEAR, for values that are whole: `width` >= 1 of them are told apart.

        y = 255 ((x - (c - 0.5)) / (w - 1) + 0.5): it ends half a value earlier at each side than
        LINEAR_EXACT does.
        """
        return cls(centre - width / 2, centre + width / 2 - 1)

    @classmethod
    def of_dicom_exact(cls, centre: float, width: float) -> Self:
        """Return DICOM's LINEAR_EXACT: y = 255 ((x - c) / w + 0.5), `width` > 0."""
        return cls(centre - width / 2, centre + width / 2)

    @property
    def ends(self) -> tuple[float, float]:
        """`low` and `high`."""
        return self.low, self.high

    def __call__(self, values: Values) -> Levels:
        """Return the levels."""
        if self.low == self.high:
            return np.where(values > self.low, 255, 0).astype(np.uint8)
        cut = np.clip(values.astype(np.float64), self.low, self.high)
        return _whole(255 * ((cut - self.low) / (self.high - self.low)))


@dataclass(frozen=True)
class Sigmoid:
    """DICOM's SIGMOID, y = 255 / (1 + exp(-4 (x - centre) / width)); width > 0."""

    centre: float
    width: float

    @property
    def ends(self) -> tuple[float, float]:
        """Where the tangent in the middle meets 0 and 255."""
        return self.centre - self.width / 2, self.centre + self.width / 2

    def __call__(self, values: Values) -> Levels:
        """Return the levels."""
        # tanh, as exp overflows: 1 / (1 + exp(-2 u)) = (1 + tanh u) / 2
        steepness = 2 * (values.astype(np.float64) - self.centre) / self.width
        return _whole(255 * (1 + np.tanh(steepness)) / 2)


@dataclass(frozen=True, eq=False)
class ValueTable:
    """y = 255 entries[x - first] / top; values beyond the table take its first or last entry.

    first: value that the first entry stands for. entries: [n], n >= 1, in [0, top]; top >= 1.
    """

    first: int
    entries: NDArray[np.int64]
    top: int

    @property
    def ends(self) -> tuple[float, float]:
        """The first and the last value that have an entry."""
        return self.first, self.first + len(self.entries) - 1

    def __call__(self, values: Values) -> Levels:
        """Return the levels."""
        place = np.clip(np.rint(values.astype(np.float64)) - self.first, 0, len(self.entries) - 1)
        return _whole(255 * (self.entries[place.astype(np.int64)] / self.top))


def _whole(levels: NDArray[np.float64]) -> Levels:
    return np.rint(levels).astype(np.uint8)
