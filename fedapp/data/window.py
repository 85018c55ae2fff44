"""An image as its file stores it, and the window that maps its values to 256 grey levels.

DICOM PS3.3 C.11.2.1.2 (linear, exactly linear, sigmoid) and C.11.2.1.1 (tables).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from fedapp.core.errors import ImageError
from fedapp.core.settings import OWN_WINDOW, window_ends

Values = NDArray[Any]
"""[H, W], integers or finite floats."""
Levels = NDArray[np.uint8]
"""[H, W], 0 is black and 255 is white."""


class Window(Protocol):
    """Maps values to levels."""

    def __call__(self, values: Values) -> Levels:
        """Return the levels of these values, rounded to the nearest."""

    @property
    def ends(self) -> tuple[float, float]:
        """The values between which levels differ, the lower first."""


@dataclass(frozen=True)
class Ramp:
    """y = 255 (x - low) / (high - low), cut off at 0 and 255.

    low, high: finite, low <= high. If they are equal, values above become 255 and others 0.
    """

    low: float
    high: float

    @classmethod
    def of_dicom(cls, centre: float, width: float) -> Self:
        """Return DICOM's LINEAR, for integer values; `width` >= 1 of them are distinguished.

        y = 255 ((x - (c - 0.5)) / (w - 1) + 0.5). On each side it ends half a value earlier than
        LINEAR_EXACT.
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
        """Return the levels of these values."""
        if self.low == self.high:
            return np.where(values > self.low, 255, 0).astype(np.uint8)
        cut = np.clip(values.astype(np.float64), self.low, self.high)
        return _as_levels(255 * ((cut - self.low) / (self.high - self.low)))


@dataclass(frozen=True)
class Sigmoid:
    """DICOM's SIGMOID, y = 255 / (1 + exp(-4 (x - centre) / width)); width > 0."""

    centre: float
    width: float

    @property
    def ends(self) -> tuple[float, float]:
        """Where the tangent at the centre reaches 0 and 255."""
        return self.centre - self.width / 2, self.centre + self.width / 2

    def __call__(self, values: Values) -> Levels:
        # By tanh, because exp overflows: 1 / (1 + exp(-2 u)) = (1 + tanh u) / 2
        """Return the levels of these values."""
        steepness = 2 * (values.astype(np.float64) - self.centre) / self.width
        return _as_levels(255 * (1 + np.tanh(steepness)) / 2)


@dataclass(frozen=True, eq=False)
class ValueTable:
    """y = 255 entries[x - first] / top; values beyond the table take its first or last entry.

    first: the value of the first entry.
    entries: [n], n >= 1, in [0, top]; top >= 1.
    """

    first: int
    entries: NDArray[np.int64]
    top: int

    @property
    def ends(self) -> tuple[float, float]:
        """The first and the last value that have an entry."""
        return self.first, self.first + len(self.entries) - 1

    def __call__(self, values: Values) -> Levels:
        """Return the levels of these values."""
        place = np.clip(np.rint(values.astype(np.float64)) - self.first, 0, len(self.entries) - 1)
        return _as_levels(255 * (self.entries[place.astype(np.int64)] / self.top))


class DepthError(ImageError):
    """An image has more than 8 bits, and the agreed window does not say which values to show.

    holds: describes the image's content.
    """

    def __init__(self, file: object, holds: str, lacking: str, remedy: str) -> None:
        super().__init__(file, f"{holds}, but {lacking}", remedy)
        self.holds = holds


@dataclass(frozen=True, eq=False)
class StoredImage:
    """An image before its window is applied. kind: its format in words, such as "16-bit PNG".

    values: uint8 [H, W] or [H, W, 3] (RGB): levels that are used unchanged. With any other type
        they are finite grey values [H, W], which need a window.
    window: the file's own window; None: it has none.
    inverted: whether, according to the file, high values are dark.
    padding: [H, W], which pixels are padding according to the file; None: none are.
    """

    kind: str
    values: Values
    window: Window | None = None
    inverted: bool = False
    padding: NDArray[np.bool_] | None = None

    @property
    def grey(self) -> bool:
        """Whether it has no colours."""
        return self.values.ndim == 2

    @property
    def deep(self) -> bool:
        """Whether its values need a window."""
        return self.values.dtype != np.uint8

    @property
    def unpadded(self) -> Values:
        """The values [n] that are not padding; all values if everything is padding."""
        values = self.values.ravel() if self.padding is None else self.values[~self.padding]
        return values if values.size else self.values.ravel()


def levels(stored: StoredImage, window: str, file: Path) -> Levels:
    """Return the image as a network sees it: uint8, with the shape of the values.

    window: as `data.window`. Images of 8 bits are used unchanged, unless the setting asks for the
        files' own windows. Padding becomes black.
    Raises DepthError, which names the file, where there is no window for it.
    """
    wanted = stored.window if window == OWN_WINDOW else None
    if wanted is None and stored.deep:
        ends = window_ends(window)
        if ends is None:
            raise _no_window(stored, window, file)
        wanted = Ramp(*ends)
    shown: Levels = stored.values if wanted is None else wanted(stored.values)
    shown = 255 - shown if stored.inverted else shown
    return shown if stored.padding is None else np.where(stored.padding, np.uint8(0), shown)


def _no_window(stored: StoredImage, window: str, file: Path) -> DepthError:
    low, high = stored.unpadded.min(), stored.unpadded.max()
    lacking = "it has no window of its own" if window else "data.window is not set"
    return DepthError(
        file,
        f"{stored.kind}, values {low:g} to {high:g}",
        lacking,
        "set data.window to the two values that are to be black and white, the same for all sites "
        "(`fedapp check` suggests some), or save the image with 8 bits",
    )


def _as_levels(levels: NDArray[np.float64]) -> Levels:
    return np.rint(levels).astype(np.uint8)
