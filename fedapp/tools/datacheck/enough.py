"""Whether every class can be learned and measured, and how sure an accuracy will be."""

from collections import Counter
from collections.abc import Sequence

from fedapp.data.own import Entry
from fedapp.data.own.copies import Group
from fedapp.data.own.deal import ENOUGH, TEST, TRAIN, VAL
from fedapp.learn.metrics import FEW, wilson
from fedapp.tools.datacheck.findings import Finding, note, shown

FEW_OF_CLASS = 5
"""Test images of a class below which its share of right answers says next to nothing."""

_USES = {TRAIN: "training", VAL: "validation", TEST: "test"}


def findings_of_classes(
    entries: Sequence[Entry],
    parts: Sequence[str],
    groups: Sequence[Group],
    classes: Sequence[str],
    hide_below: int,
) -> list[Finding]:
    """Return which classes are not in every part that the site has at all.

    parts, groups: of each entry, the groups as they are dealt. classes: the agreed ones.
    hide_below: smallest count that is shown.
    """
    rows = [row for row in zip(entries, parts, groups, strict=True) if row[0].label]
    used = [part for part in _USES if any(found == part for _, found, _ in rows)]
    known = sorted({entry.label for entry, _, _ in rows} - {*classes})
    dealt = not any(entry.part for entry in entries)
    found, absent = list[Finding](), list[str]()
    for name in [*classes, *known]:
        mine = [(part, group) for entry, part, group in rows if entry.label == name]
        lacking = [use for part, use in _USES.items() if part in used and part not in dict(mine)]
        if not mine:
            absent.append(name)
        elif lacking:
            count = shown(len({group for _, group in mine}), hide_below)
            plural = (
                "" if count == "1" else "s"
            )  # of what is shown: it must not tell a hidden count
            remedy = "give it some in the column split"
            if dealt:
                remedy = (
                    f"it has {count} group{plural} (patients, or images without one), and needs "
                    f"{ENOUGH} that are mostly of this class; label more"
                )
            found.append(note(f"class {name!r}: no {' and no '.join(lacking)} images", remedy))
    if absent and rows:
        remedy = "the site can neither teach them nor measure them; label some if you have any"
        text = f"no labelled images of class {', '.join(map(repr, absent))}"
        found.append(note(text, remedy))
    return found


def expected(entries: Sequence[Entry], parts: Sequence[str], hide_below: int) -> str:
    """Say how wide the accuracy's 95 % interval will be; empty where it would tell hidden counts.

    hide_below: smallest count that is shown.
    """
    by_class: dict[str, int] = {}
    for entry, part in zip(entries, parts, strict=True):
        if part == TEST:
            by_class[entry.label] = by_class.get(entry.label, 0) + 1
    total = sum(by_class.values())
    if not total or min(by_class.values()) < hide_below:
        return ""
    right = round(0.8 * total)
    low, high = wilson(right, total)
    return (
        f"of {total:,} test images; {right:,} right would mean {100 * low:.0f} to {100 * high:.0f} "
        "% (95 % interval)"
    )


def findings_of_test(
    entries: Sequence[Entry], parts: Sequence[str], hide_below: int
) -> list[Finding]:
    """Return whether test images are too few to tell a good model from a bad one, class by class.

    hide_below: smallest count that is shown.
    """
    pairs = zip(entries, parts, strict=True)
    counted = Counter(entry.label for entry, part in pairs if part == TEST)
    found = []
    if 0 < counted.total() < FEW:
        remedy = "chance decides which of two models looks better here; label more images"
        found.append(note(f"fewer than {FEW} test images", remedy))
    # A smaller number than hide_below must not show through.
    least = max(FEW_OF_CLASS, hide_below)
    if few := sorted(name for name, count in counted.items() if count < least):
        low, _ = wilson(FEW_OF_CLASS - 1, FEW_OF_CLASS - 1)
        remedy = (
            f"nothing can be said of these by themselves: {FEW_OF_CLASS - 1} of "
            f"{FEW_OF_CLASS - 1} right is {100 * low:.0f} to 100 %; label more"
        )
        found.append(
            note(f"fewer than {least} test images of class {', '.join(map(repr, few))}", remedy)
        )
    return found
