"""The images themselves: can each be read, how large is it, in which colours."""

from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rich.console import Console
from rich.progress import track

from fedapp.data.copies import content_of
from fedapp.data.folder import fitted, read_stored
from fedapp.data.images import MAX_SIDE
from fedapp.data.own import Entry
from fedapp.data.stored import DepthError
from fedapp.ground.errors import ImageError
from fedapp.ground.extras import NotInstalled
from fedapp.ground.settings import DataSettings
from fedapp.tools.datacheck.depth import Depth, depth_of, findings_of_depth, kinds
from fedapp.tools.datacheck.findings import Finding, fault, note


@dataclass(frozen=True)
class Seen:
    """An image that can be read. size: width and height in pixels."""

    size: tuple[int, int]
    grey: bool
    depth: Depth


@dataclass(frozen=True)
class Look:
    """One image as it lies there. content: `content_of` it at the agreed size; empty: unknown.

    seen: None where it cannot be read; fault: why.
    """

    content: str = ""
    seen: Seen | None = None
    fault: Finding | None = None


def look_at_images(
    entries: Sequence[Entry], settings: DataSettings | None, console: Console
) -> tuple[list[str], list[tuple[str, str]], list[Finding]]:
    """Return the images' contents, what they are in words, and what is wrong or odd about them."""
    looks = _looks(entries, settings, console)
    depths = [look.seen.depth for look in looks if look.seen]
    said = [("images", sizes(looks)), ("kinds", kinds(depths))]
    return [look.content for look in looks], said, findings_of(looks, settings)


def _looks(entries: Sequence[Entry], settings: DataSettings | None, console: Console) -> list[Look]:
    """Open every image as a run would; shows how far it is on a terminal."""
    agreed = (MAX_SIDE, 0, "")
    if settings:
        agreed = (settings.image_size, settings.channels, settings.window)
    with ThreadPoolExecutor() as pool:
        looks: Iterable[Look] = pool.map(lambda entry: _look(entry, *agreed), entries)
        if console.is_terminal:
            looks = track(looks, "reading images", len(entries), console=console, transient=True)
        return list(looks)


def findings_of(looks: Sequence[Look], settings: DataSettings | None) -> list[Finding]:
    """Return what is wrong or odd about the images; settings: what the sites agreed upon."""
    # One library that is not there is one fault, of however many images.
    found = list(dict.fromkeys(look.fault for look in looks if look.fault))
    whole = [look.seen for look in looks if look.seen]
    found += findings_of_depth([seen.depth for seen in whole], settings)
    if settings is None:
        return found
    side = settings.image_size
    if settings.channels == 1 and (some := _how_many([not seen.grey for seen in whole])):
        found.append(note(f"{some} images are in colour", "they are turned to grey when read"))
    if some := _how_many([min(seen.size) < side for seen in whole]):
        text = f"{some} images are smaller than {side} x {side} pixels"
        found.append(note(text, "they are enlarged, which adds no detail"))
    if some := _how_many([max(seen.size) > 1.1 * min(seen.size) for seen in whole]):
        text = f"{some} images are longer than wide or wider than long by over 10 %"
        found.append(note(text, "they are squeezed to squares; cut them square if shapes matter"))
    return found


def sizes(looks: Sequence[Look]) -> str:
    """Say how large the images are, width x height in pixels."""
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
    """Return "all", "most", "some" or, for none, nothing: numbers are the table's, which hides."""
    share = sum(these) / max(len(these), 1)
    return "all" if share == 1 else "most" if share > 0.5 else "some" if share else ""


def _area(size: tuple[int, int]) -> int:
    return size[0] * size[1]


def _look(entry: Entry, side: int, channels: int, window: str) -> Look:
    try:
        stored = read_stored(entry.path)
        height, width = stored.values.shape[:2]
        seen = Seen((width, height), stored.grey, depth_of(stored))
        image = fitted(stored, entry.path, side, channels, window)
        return Look(content_of(image), seen)
    except DepthError:
        return Look(seen=seen)  # `findings_of_depth` says it once for all
    except ImageError as error:
        return Look(fault=fault(f"{entry.name}: {error.what}", error.remedy))
    except NotInstalled as error:
        return Look(fault=fault(f"DICOM files, but {error.what}", error.remedy))
    except OSError as error:
        remedy = "let the user who runs the node read it"
        return Look(fault=fault(f"{entry.name}: cannot be read ({error.strerror})", remedy))
