"""The images themselves: can each be read, how large is it, is it there twice."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from PIL import Image
from rich.console import Console
from rich.progress import track

from fedapp.data.folder import decode
from fedapp.data.images import MIN_SIDE
from fedapp.data.own import Entry
from fedapp.data.own.deal import ASIDE
from fedapp.datacheck.findings import SHOWN, Finding, fault, note
from fedapp.errors import DataError
from fedapp.settings import DataSettings


@dataclass(frozen=True)
class Look:
    """One image as it lies there. broken: why it cannot be read, and the remedy; else empty."""

    entry: Entry
    part: str
    digest: str = ""
    size: tuple[int, int] = (0, 0)
    grey: bool = True
    broken: str = ""
    remedy: str = ""


def look_at(entries: Sequence[Entry], parts: Sequence[str], console: Console) -> list[Look]:
    """Open every image as a run would; shows how far it is on a terminal."""
    with ThreadPoolExecutor() as pool:
        looks: Iterable[Look] = pool.map(_look, entries, parts)
        if console.is_terminal:
            looks = track(looks, "reading images", len(entries), console=console, transient=True)
        return list(looks)


def findings_of(looks: Sequence[Look], settings: DataSettings | None) -> list[Finding]:
    """Return what is wrong or odd about the images; settings: what the sites agreed upon."""
    broken = [look for look in looks if look.broken]
    whole = [look for look in looks if not look.broken]
    found = [fault(f"{look.entry.name}: {look.broken}", look.remedy) for look in broken]
    found += _duplicates(whole)
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


def _look(entry: Entry, part: str) -> Look:
    try:
        digest = hashlib.sha256(entry.path.read_bytes()).hexdigest()
        pixels = decode(entry.path, MIN_SIDE)  # decodes all of it, then makes it small
        with Image.open(entry.path) as opened:
            return Look(entry, part, digest, opened.size, pixels.shape[0] == 1)
    except DataError as error:
        _, _, rest = str(error).removeprefix(str(entry.path)).partition(": ")
        what, _, remedy = rest.rpartition(": ")
        return Look(entry, part, broken=what, remedy=remedy)
    except OSError as error:
        remedy = "let the user who runs the node read it"
        return Look(entry, part, broken=f"cannot be read ({error.strerror})", remedy=remedy)


def _duplicates(looks: Sequence[Look]) -> list[Finding]:
    """Find files of the same bytes; those that contradict each other or cross parts are faults."""
    alike: dict[str, list[Look]] = {}
    for look in looks:
        alike.setdefault(look.digest, []).append(look)
    found, harmless = [], False
    for copies in alike.values():
        if len(copies) == 1:
            continue
        names = ", ".join(look.entry.name for look in copies[:4])
        labels = sorted({look.entry.label for look in copies if look.entry.label})
        parts = sorted({look.part for look in copies} - {ASIDE})
        groups = sorted({look.entry.group for look in copies})
        if len(labels) > 1:
            text = f"the same image, labelled {' and '.join(map(repr, labels))}: {names}"
            found.append(fault(text, "keep the one with the right label"))
        elif len(parts) > 1:
            text = f"the same image in {' and '.join(parts)}: {names}"
            found.append(fault(text, "keep one, or give all of them one group and one split"))
        elif len(groups) > 1:
            text = f"the same image in {len(groups)} groups: {names}"
            found.append(fault(text, "keep one, or give all of them one group"))
        else:
            harmless = True
    if len(found) > SHOWN:
        more = fault(f"{len(found) - SHOWN} more images twice", "mend the first and run again")
        found = [*found[:SHOWN], more]
    if harmless:
        remedy = "they count double; remove the copies if that is not meant"
        found.append(note("some images are copies of others in the same part", remedy))
    return found
