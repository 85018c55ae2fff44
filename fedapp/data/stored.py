"""An image as its file holds it, and what becomes of it by the window that all sites agree upon."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedapp.data.window import Levels, Ramp, Values, Window
from fedapp.ground.errors import ImageError
from fedapp.ground.settings import OWN_WINDOW, window_ends


class DepthError(ImageError):
    """An image has more than 8 bits, and the agreed window does not say which values to show.

    holds: what is in it.
    """

    def __init__(self, file: object, holds: str, lacking: str, remedy: str) -> None:
        super().__init__(file, f"{holds}, but {lacking}", remedy)
        self.holds = holds


@dataclass(frozen=True, eq=False)
class Stored:
    """An image before its window. kind: what a person calls it, such as "16-bit PNG".

    values: uint8 [H, W] or [H, W, 3] (RGB): levels to be used as they are; of any other type, and
        then finite and [H, W]: grey values, which need a window.
    window: the file's own; None: it has none.
    inverted: the file says that its high values are dark.
    padding: [H, W], where the file says that a pixel only fills the image up; None: nowhere.
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
    def told(self) -> Values:
        """The values [n] that are no padding; all of them, where there is nothing else."""
        told = self.values.ravel() if self.padding is None else self.values[~self.padding]
        return told if told.size else self.values.ravel()


def levels(stored: Stored, window: str, file: Path) -> Levels:
    """Return what a network sees: uint8 of the values' shape.

    window: as `data.window`. Images of 8 bits are taken as they are, unless the files' own windows
    are asked for. Padding becomes black. Raises DepthError, which names the file, where there is no
    window for it.
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


def _no_window(stored: Stored, window: str, file: Path) -> DepthError:
    low, high = stored.told.min(), stored.told.max()
    lacking = "it has no window of its own" if window else "data.window is not set"
    return DepthError(
        file,
        f"{stored.kind}, values {low:g} to {high:g}",
        lacking,
        "set data.window to the two values that are to be black and white, the same for all sites "
        "(`fedapp check` suggests some), or save the image with 8 bits",
    )
