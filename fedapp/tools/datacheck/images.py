"""The images themselves: can each be read, how large is it, in which colours."""

from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from PIL import Image
from rich.console import Console
from rich.progress import track

from fedapp.data.folder import GREY, decode
from fedapp.data.images import MAX_SIDE
from fedapp.data.own import Entry
from fedapp.data.own.copies import content_of
from fedapp.ground.errors import DataError
from fedapp.ground.settings import DataSettings
from fedapp.tools.datacheck.findings import Finding, fault, note


@dataclass(frozen=True)
class Look:
    """One image as it lies there. content: `content_of` it at the agreed size.

    broken, remedy: why it cannot be read, and what to do; then it has no content. Else empty.
    """

    entry: Entry
    content: str = ""
    size: tuple[int, int] = (0, 0)
    grey: bool = True
    broken: str = ""
    remedy: str = ""


def look_at(
    entries: Sequence[Entry], settings: DataSettings | None, console: Console
) -> list[Look]:
    """Open every image as a run would; shows how far it is on a terminal."""
    side, channels = (settings.image_size, settings.channels) if settings else (MAX_SIDE, 0)
    with ThreadPoolExecutor() as pool:
        looks: Iterable[Look] = pool.map(lambda entry: _look(entry, side, channels), entries)
        if console.is_terminal:
            looks = track(looks, "reading images", len(entries), console=console, transient=True)
        return list(looks)


def findings_of(looks: Sequence[Look], settings: DataSettings | None) -> list[Finding]:
    """Return what is wrong or odd about the images; settings: what the sites agreed upon."""
    broken = [look for look in looks if look.broken]
    whole = [look for look in looks if not look.broken]
    found = [fault(f"{look.entry.name}: {look.broken}", look.remedy) for look in broken]
    if settings is None:
        return found
    side = settings.image_size
    if settings.channels == 1 and (some := _how_many([not look.grey for look in whole])):
        found.append(note(f"{some} images are in colour", "they are turned to grey when read"))
    if some := _how_many([min(look.size) < side for look in whole]):
        text = f"{some} images are smaller than {side} x {side} pixels"
        found.append(note(text, "they are enlarged, which adds no detail"))
    if some := _how_many([max(look.size) > 1.1 * min(look.size) for look in whole]):
        text = f"{some} images are longer than wide or wider than long by over 10 %"
        found.append(note(text, "they are squeezed to squares; cut them square if shapes matter"))
    return found


def sizes(looks: Sequence[Look]) -> str:
    """Say how large the images are, width x height in pixels."""
    counted = Counter(look.size for look in looks if not look.broken)
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


def _look(entry: Entry, side: int, channels: int) -> Look:
    try:
        content = content_of(decode(entry.path, side, channels))
        with Image.open(entry.path) as opened:  # reads its head alone
            return Look(entry, content, opened.size, opened.mode in GREY)
    except DataError as error:
        _, _, rest = str(error).removeprefix(str(entry.path)).partition(": ")
        what, _, remedy = rest.rpartition(": ")
        return Look(entry, broken=what, remedy=remedy)
    except OSError as error:
        remedy = "let the user who runs the node read it"
        return Look(entry, broken=f"cannot be read ({error.strerror})", remedy=remedy)
