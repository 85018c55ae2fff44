"""Of what kind the images are, which values they have, and which window would show them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from fedapp.data.stored import Stored
from fedapp.ground.settings import OWN_WINDOW, DataSettings, window_ends
from fedapp.tools.datacheck.findings import Finding, fault, note

_SAMPLED = 65536
"""Values of an image, evenly spaced, that its usual range is taken from."""
_TAILS = (0.005, 0.995)
"""Quantiles between which values are usual: hot pixels and metal lie beyond."""
_FEW_LEVELS = 64
"""Levels of 256 that the usual values should take at least."""

Ends = tuple[float, float]


@dataclass(frozen=True)
class Depth:
    """An image's kind, such as "16-bit PNG", and its values where these need a window.

    values: the least and the greatest, padding apart; None: 8 bits, levels already. usual: the
    middle 99 % of them. window: the ends of the file's own; None: it has none.
    """

    kind: str
    values: Ends | None = None
    usual: Ends = (0, 255)
    window: Ends | None = None


def depth_of(stored: Stored) -> Depth:
    """Return an image's depth."""
    window = stored.window.ends if stored.window else None
    if not stored.deep:
        return Depth(stored.kind, window=window)
    values = stored.told
    low, high = np.quantile(values[:: len(values) // _SAMPLED + 1], _TAILS).tolist()
    return Depth(stored.kind, (float(values.min()), float(values.max())), (low, high), window)


def kinds(depths: Sequence[Depth]) -> str:
    """Say of which kinds the images are, the most frequent first, and which values they have."""
    said = []
    for kind, _ in Counter(depth.kind for depth in depths).most_common():
        values = [depth.values for depth in depths if depth.kind == kind and depth.values]
        said.append(f"{kind}, {_range(values)}" if values else kind)
    return "; ".join(said) or "none could be read"


def findings_of_depth(depths: Sequence[Depth], settings: DataSettings | None) -> list[Finding]:
    """Return what `data.window` should be and is not; settings: what the sites agreed upon."""
    deep = [depth for depth in depths if depth.values]
    if not deep:
        return []
    found, agreed = list[Finding](), settings.window if settings else ""
    ends = window_ends(agreed)
    lost = [] if ends else [d for d in deep if agreed != OWN_WINDOW or d.window is None]
    if lost:
        values = _range([depth.values for depth in lost if depth.values])
        what = f"{_alike(lost)} of more than 8 bits, {values}"
        lacking = "some have no window of their own" if agreed else "data.window is not set"
        remedy = f"have it set, the same for all sites; these images suggest {suggested(lost)}"
        found.append((fault if settings else note)(f"{what}: {lacking}", remedy))
    elif ends and (levels := _levels(deep, ends)) < _FEW_LEVELS:
        what = (
            f"data.window = {agreed!r}: the middle 99 % of your values take {levels} of 256 levels"
        )
        remedy = f"detail is lost; is it the right one? These images suggest {suggested(deep)}"
        found.append(note(what, remedy))
    if len(deep) < len(depths):
        remedy = "data.window does not change 8-bit images: save them by the same window"
        found.append(note(f"8-bit images among {_alike(deep)} of more bits", remedy))
    return found


def suggested(deep: Sequence[Depth]) -> str:
    """Return a window for images that need one: their own, or else their usual values."""
    own = {depth.window for depth in deep}
    if None not in own and len(own) > 1:
        return f"{OWN_WINDOW} (their own windows, which differ)"
    [ends] = own if len(own) == 1 else [None]
    if ends is None:
        ends = median(d.usual[0] for d in deep), median(d.usual[1] for d in deep)
    low = round(ends[0])
    return f"'{low}, {max(round(ends[1]), low + 1)}'"


def _levels(deep: Sequence[Depth], ends: Ends) -> int:
    """Return how many of 256 levels the usual values take in a window."""
    low, high = (median(depth.usual[end] for depth in deep) for end in (0, 1))
    shown = max(0.0, min(high, ends[1]) - max(low, ends[0]))
    return round(255 * shown / (ends[1] - ends[0])) + 1


def _range(values: Sequence[Ends]) -> str:
    low, high = min(low for low, _ in values), max(high for _, high in values)
    return f"values {low:g} to {high:g}"


def _alike(depths: Sequence[Depth]) -> str:
    """Name the formats without their bits: PNG, TIFF, DICOM."""
    return " and ".join(sorted({depth.kind.rpartition(" ")[2] for depth in depths}))
