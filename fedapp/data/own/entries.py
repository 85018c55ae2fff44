"""What a site's listing is made of, and the faults that both ways of listing share."""

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from fedapp.data.folder import KINDS
from fedapp.data.inputs import UNKNOWN
from fedapp.data.own.faults import Fault, Kind

IMAGE = f"an image as {KINDS}"


@dataclass(frozen=True)
class Entry:
    """One image, or one vector of the file `path`. They are in the order of their names.

    name: its path below the data, with slashes; a vector's id.
    label: class, or empty. part: train, val or test, or empty where the site left that open.
    group: what must stay together, such as a patient; empty: this image belongs to no other.
    bag: which of the site's bags holds it, in the place of a label; empty: none. findings: of each
    agreed one 1, 0 or `UNKNOWN`; then the label, if any was read, names those that are there.
    """

    path: Path
    name: str
    label: str
    part: str = ""
    group: str = ""
    bag: str = ""
    findings: tuple[int, ...] = ()


def of_findings(entries: Sequence[Entry], findings: Sequence[str]) -> list[tuple[int, Entry]]:
    """Return each entry, with its place, once for every finding that was read in it.

    Its label then says "effusion" or "no effusion". One in which nothing was read stays as it is.
    """
    found = []
    for place, entry in enumerate(entries):
        read = [(n, y) for n, y in zip(findings, entry.findings, strict=True) if y != UNKNOWN]
        labels = [name if there else f"no {name}" for name, there in read]
        found += [(place, replace(entry, label=label)) for label in labels or [""]]
    return found


@dataclass(frozen=True)
class Listing:
    """What a site holds.

    passed_over: files beside the images that are none. bags: class proportions of each bag, by its
    name, in the order of the agreed classes; each sums to 1. by_patient: groups are patients.
    values: of each entry, float32 [n, D], finite; None: the entries are images, not opened yet.
    """

    entries: tuple[Entry, ...]
    faults: tuple[Fault, ...]
    passed_over: tuple[str, ...] = ()
    bags: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    by_patient: bool = False
    values: Tensor | None = None


def label_fault(where: str, label: str, classes: Sequence[str], called: str = "label") -> Fault:
    """Return the fault of a label, or what else it is called, that is not in the agreed list."""
    near = difflib.get_close_matches(label, classes, 1)
    same = next((c for c in classes if c.lower() == label.lower()), near[0] if near else "")
    remedy = f"did you mean {same!r}?" if same else "rename it, or have the list changed"
    what = f"{called} {label!r} is not in data.classes ({', '.join(classes)})"
    return Fault(Kind.LABEL, where, what, remedy)


def outside(path: Path, root: Path) -> bool:
    """Whether a path leads out of the folder `root`, itself free of links, through links or not."""
    return not Path(os.path.realpath(path)).is_relative_to(root)


def outside_fault(where: str) -> Fault:
    """Return the fault of a file that lies elsewhere."""
    return Fault(
        Kind.FILE, where, "leads out of the data's folder", "copy the images into the folder"
    )
