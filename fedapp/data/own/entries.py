"""The listing of a site's data, and the faults that it may have, whatever its layout.

A fault is reported completely to the site and partly to the server. The name of a file may contain
the name of a patient, and so may a label that is not a valid class (two columns exchanged). So
every fault has two wordings: one with names for the site's own screen and log, and one without for
the server.

The patient of an image is given by a column of labels.csv or by a part of its path (`patients` of
site.yaml). The images of a patient are a group. They go to one part of a site together, and the
confidence intervals of a site resample patients, not images. A split that the site has made itself
must keep patients together, too.
"""

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from torch import Tensor

from fedapp.core.errors import ImageError, one_line
from fedapp.data.folder import FORMATS, SPLITS
from fedapp.data.inputs import UNKNOWN
from fedapp.data.split.groups import patient_in

IMAGE = f"an image as {FORMATS}"
PATIENT, GROUP = "patient", "group"
"""Columns of labels.csv that say which images must stay together."""
SPLIT_PARTS = ("train", "val", "test")
"""Parts that a site's own split may name."""
_WHOSE = "so nobody knows whose it is"


class Kind(StrEnum):
    """Kinds of faults. The values are the wording for the server."""

    LAYOUT = "its folder or its labels.csv is not laid out as docs/OWN_DATA.md says"
    LABEL = "it has labels that are not in data.classes"
    FINDING = "its labels.csv has not a column of 1, 0 or nothing for each of data.findings"
    FILE = "it has images that are absent, damaged or outside its folder"
    DEPTH = "its images have more than 8 bits, and data.window does not say how to show them"
    VECTORS = "its vectors are not those that docs/OWN_DATA.md and the preset ask for"
    BAGS = "its bags or their proportions are not as docs/research/bags.md says"
    PATIENT = "it does not say of each image whose it is, or all are one patient's"
    SPLIT = "its split is not one that docs/OWN_DATA.md allows"


@dataclass(frozen=True)
class Fault:
    """One fault: where it is, which rule is broken, and the remedy."""

    kind: Kind
    where: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{one_line(self.where, 500)}: {one_line(self.what, 500)}: {self.remedy}"


class OwnDataError(ImageError):
    """A site's data cannot be used. The message names files, so it is for the site only."""

    def __init__(self, site: str, faults: Sequence[Fault]) -> None:
        more = f" (and {len(faults) - 1} more; `fedapp check` lists them)" if faults[1:] else ""
        first = faults[0]
        super().__init__(f"site {site}: {first.where}", first.what, f"{first.remedy}{more}")
        kinds = list(dict.fromkeys(fault.kind.value for fault in faults))
        self.for_server = (
            f"site {site!r} cannot use its data: {'; '.join(kinds)}: `fedapp check` at the site, "
            "and its log, name the files"
        )


@dataclass(frozen=True)
class Entry:
    """One image, or one vector of the file `path`. Entries are sorted by name.

    name: the path below the data folder, with slashes; for a vector its id.
    label: the class, or empty.
    part: train, val or test; empty if the site left that open.
    group: what must stay together, such as a patient; empty: the image is on its own.
    bag: the site's bag that contains it, in place of a label; empty: none.
    findings: 1, 0 or `UNKNOWN` for each agreed finding; the label, if any finding was annotated,
        then names those that are present.
    """

    path: Path
    name: str
    label: str
    part: str = ""
    group: str = ""
    bag: str = ""
    findings: tuple[int, ...] = ()


def one_entry_per_finding(
    entries: Sequence[Entry], findings: Sequence[str]
) -> list[tuple[int, Entry]]:
    """Return each entry with its position, once for every finding that was annotated in it.

    Its label is then, for example, "effusion" or "no effusion". An entry without annotations is
    returned unchanged.
    """
    found = []
    for place, entry in enumerate(entries):
        read = [(n, y) for n, y in zip(findings, entry.findings, strict=True) if y != UNKNOWN]
        labels = [name if there else f"no {name}" for name, there in read]
        found += [(place, replace(entry, label=label)) for label in labels or [""]]
    return found


@dataclass(frozen=True)
class Listing:
    """What a site has.

    passed_over: files beside the images that are ignored.
    bags: the class proportions of each bag by its name, in the order of the agreed classes; they
        sum to 1.
    by_patient: whether groups are patients.
    values: of all entries, float32 [n, D], finite; None: the entries are images that are not opened
        yet.
    """

    entries: tuple[Entry, ...]
    faults: tuple[Fault, ...]
    passed_over: tuple[str, ...] = ()
    bags: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    by_patient: bool = False
    values: Tensor | None = None


def check_label(
    where: str, label: str, classes: Sequence[str], strange: set[str], faults: list[Fault]
) -> None:
    """Report a label that is not an agreed class, once for each such label.

    label: empty: there is none.
    classes: empty: any label is accepted.
    strange: labels that were reported before.
    """
    if label and classes and label not in {*classes, *strange}:
        strange.add(label)
        faults.append(label_fault(where, label, classes))


def label_fault(where: str, label: str, classes: Sequence[str], called: str = "label") -> Fault:
    """Return the fault of a label (or of what it is `called`) that is not in the agreed list."""
    near = difflib.get_close_matches(label, classes, 1)
    same = next((c for c in classes if c.lower() == label.lower()), near[0] if near else "")
    remedy = f"did you mean {same!r}?" if same else "rename it, or have the list changed"
    what = f"{called} {label!r} is not in data.classes ({', '.join(classes)})"
    return Fault(Kind.LABEL, where, what, remedy)


def leads_outside(path: Path, root: Path) -> bool:
    """Whether a path, with links resolved, leads out of `root`, which itself contains no links."""
    return not Path(os.path.realpath(path)).is_relative_to(root)


def outside_fault(where: str) -> Fault:
    """Return the fault of a file that lies outside the data folder."""
    return Fault(
        Kind.FILE, where, "leads out of the data's folder", "copy the images into the folder"
    )


def with_patients_of_paths(listing: Listing, pattern: str) -> Listing:
    """Return the listing with each image's patient taken from its path, and the faults of that.

    pattern: a regular expression with one group, which is searched in the path below the data
        folder; empty: the listing is returned unchanged.
    """
    if not pattern:
        return listing
    if any(entry.group for entry in listing.entries):
        what = "names patients in a column, and a pattern reads them from paths"
        fault = Fault(Kind.PATIENT, "labels.csv", what, "leave one of the two out")
        return replace(listing, faults=(*listing.faults, fault))
    entries, faults = list[Entry](), list[Fault]()
    for entry in listing.entries:
        patient = patient_in(entry.name, pattern)
        if not patient:
            what = f"its path does not match the pattern of patients {pattern!r}, {_WHOSE}"
            remedy = "rename the file as the others are, or correct the pattern"
            faults.append(Fault(Kind.PATIENT, entry.name, what, remedy))
        else:
            entries.append(replace(entry, group=patient))
    if not faults:
        faults = [*single_patient_faults(entries), *split_group_faults("the site's split", entries)]
    return replace(listing, entries=tuple(entries), faults=(*listing.faults, *faults))


def missing_patient_faults(where: str, patient: str) -> list[Fault]:
    """Return the fault of a line without a patient, where other lines have one."""
    if patient:
        return []
    what = f"the column {PATIENT} is empty, {_WHOSE}"
    return [Fault(Kind.PATIENT, where, what, f"fill it in each line, or call it {GROUP}")]


def single_patient_faults(entries: Sequence[Entry]) -> list[Fault]:
    """Return the fault of a site whose labelled images all are of one patient."""
    of = [entry.group for entry in entries if entry.label]
    if not of or len(set(of)) > 1:
        return []
    what = f"all {len(of)} labelled images are of this one, to learn from and to be tested on"
    remedy = "add images of other patients, or correct the column or the pattern of patients"
    return [Fault(Kind.PATIENT, f"patient {of[0]!r}", what, remedy)]


def part_named(word: str) -> str:
    """Return the part that a word in a site's own split means, or the word itself."""
    return SPLITS.get(word.lower(), word.lower())


def part_fault(where: str, part: str, label: str) -> Fault | None:
    """Return what is wrong with an input's part; an empty part means that the site says none."""
    if part in (*SPLIT_PARTS, "") and (label or part not in ("val", "test")):
        return None
    rule = f"split {part!r}" if label else f"split {part!r} of an image without a label"
    remedy = "write train, val or test; without a label train or nothing"
    return Fault(Kind.SPLIT, where, rule, remedy)


def with_settled_parts(table: str, entries: Sequence[Entry], faults: list[Fault]) -> list[Entry]:
    """Return the entries; where the site has made a split, unlabelled ones are for training.

    table: the name of the file that contains the split. faults: receives what is wrong with it.
    """
    if not any(entry.part for entry in entries):
        return list(entries)
    found = [e if e.part or e.label else replace(e, part="train") for e in entries]
    faults += [
        Fault(Kind.SPLIT, f"{table}: {entry.name}", "labelled, but without a split",
              "give every labelled image one, or none")
        for entry in found if not entry.part
    ]  # fmt: skip
    faults += split_group_faults(table, found)
    return found


def split_group_faults(table: str, entries: Sequence[Entry]) -> list[Fault]:
    """Return the faults of groups that a site's own split has in several parts."""
    parts: dict[str, set[str]] = {}
    for entry in entries:
        if entry.group and entry.part:
            parts.setdefault(entry.group, set()).add(entry.part)
    faults = []
    for group, found in sorted(parts.items()):
        if len(found) > 1:
            what = f"is in {' and '.join(p for p in SPLIT_PARTS if p in found)}"
            remedy = "give all its images one split, unlabelled ones (train) included"
            faults.append(Fault(Kind.SPLIT, f"{table}: group {group!r}", what, remedy))
    return faults
