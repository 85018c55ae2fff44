"""The split that a site has made itself: what it may say of each input, and of all together."""

from collections.abc import Sequence
from dataclasses import replace

from fedapp.data.folder import SPLITS
from fedapp.data.own.entries import Entry
from fedapp.data.own.faults import Fault, Kind

PARTS = ("train", "val", "test")


def part_of(word: str) -> str:
    """Return the part that a word of a site's own split names, or the word itself."""
    return SPLITS.get(word.lower(), word.lower())


def part_fault(where: str, part: str, label: str) -> Fault | None:
    """Return what is wrong with an input's part; empty: the site says none."""
    if part in (*PARTS, "") and (label or part not in ("val", "test")):
        return None
    rule = f"split {part!r}" if label else f"split {part!r} of an image without a label"
    remedy = "write train, val or test; without a label train or nothing"
    return Fault(Kind.SPLIT, where, rule, remedy)


def settled(table: str, entries: Sequence[Entry], faults: list[Fault]) -> list[Entry]:
    """Return the entries, those without a label for training where the site has made a split.

    faults: takes what is wrong with that split. table: the name of what says it.
    """
    if not any(entry.part for entry in entries):
        return list(entries)
    found = [e if e.part or e.label else replace(e, part="train") for e in entries]
    faults += [
        Fault(Kind.SPLIT, f"{table}: {entry.name}", "labelled, but without a split",
              "give every labelled image one, or none")
        for entry in found if not entry.part
    ]  # fmt: skip
    faults += apart(table, found)
    return found


def apart(table: str, entries: Sequence[Entry]) -> list[Fault]:
    """Return the faults of groups that a site's own split has in several parts."""
    parts: dict[str, set[str]] = {}
    for entry in entries:
        if entry.group and entry.part:
            parts.setdefault(entry.group, set()).add(entry.part)
    faults = []
    for group, found in sorted(parts.items()):
        if len(found) > 1:
            what = f"is in {' and '.join(p for p in PARTS if p in found)}"
            remedy = "give all its images one split, unlabelled ones (train) included"
            faults.append(Fault(Kind.SPLIT, f"{table}: group {group!r}", what, remedy))
    return faults
