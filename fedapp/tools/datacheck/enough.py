"""Whether every class can be learned and measured, and how sure an accuracy will be."""

from collections.abc import Sequence

from fedapp.data.own import Entry
from fedapp.data.own.copies import Group
from fedapp.data.own.deal import ENOUGH, TEST, TRAIN, VAL
from fedapp.learn.metrics import FEW, wilson
from fedapp.tools.datacheck.findings import Finding, note, shown

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
            remedy = "give it some in the column split"
            if dealt:
                remedy = (
                    f"it has {count} groups (patients, or images without one), {ENOUGH} that are "
                    "mostly of this class are needed; label more"
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


def findings_of_test(parts: Sequence[str]) -> list[Finding]:
    """Return whether there are too few test images to tell a good model from a bad one."""
    if not 0 < sum(part == TEST for part in parts) < FEW:
        return []
    remedy = "chance decides which of two models looks better here; label more images"
    return [note(f"fewer than {FEW} test images", remedy)]
