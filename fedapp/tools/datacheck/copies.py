"""Images that are there more than once: what contradicts itself, and what is dealt together."""

from collections.abc import Callable, Sequence

from fedapp.data.own import Entry
from fedapp.data.own.deal import ASIDE
from fedapp.tools.datacheck.findings import SHOWN, Finding, fault, note, shown

_NAMED = 4
"""Files named of those that are equal."""


def findings_of_copies(
    entries: Sequence[Entry],
    parts: Sequence[str],
    contents: Sequence[str],
    hide_below: int,
    table: bool = False,
) -> list[Finding]:
    """Return what is odd about images of equal content.

    parts, contents: of each entry; an empty content is unknown. Copies under two labels are faults.
    So are copies in two parts of the site's own split: a model would be measured on what it has
    learned. hide_below: smallest count that is shown. table: the entries are rows of a table, of
    which two may well be equal without being one: then all this is a note.
    """
    same, every, kind = (
        ("the same numbers", "rows", note) if table else ("the same image", "images", fault)
    )
    alike: dict[str, list[int]] = {}
    for number, content in enumerate(contents):
        if content:
            alike.setdefault(content, []).append(number)
    faults, tied, count = list[Finding](), list[Finding](), 0
    for copies in alike.values():
        if len(copies) == 1:
            continue
        count += len(copies)
        names = ", ".join(entries[i].name for i in copies[:_NAMED])
        labels = sorted({entries[i].label for i in copies if entries[i].label})
        apart = sorted({parts[i] for i in copies} - {ASIDE})
        groups = {entries[i].group for i in copies}
        if len(labels) > 1:
            text = f"{same}, labelled {' and '.join(map(repr, labels))}: {names}"
            faults.append(kind(text, "keep the one with the right label"))
        elif len(apart) > 1:
            text = f"{same} in {' and '.join(apart)}: {names}"
            remedy = "keep one, or give all of them one split: the column split is taken as it is"
            faults.append(kind(text, remedy))
        elif len(groups) > 1:
            text = f"{same} in {len(groups)} groups: {names}"
            remedy = "they are dealt as one group; keep one image if they are one patient's"
            tied.append(note(text, remedy))
    found = [*_cut(faults, kind), *_cut(tied, note)]
    if count:
        remedy = "copies count as often as they are there; remove those that are not meant"
        if not any(entry.part for entry in entries):
            remedy = f"equal {every} are dealt together, to one part; {remedy}"
        text = f"{shown(count, hide_below)} of {shown(len(entries), hide_below)} {every}"
        found.append(note(f"{text} have an equal copy among them", remedy))
    return found


def _cut(found: Sequence[Finding], kind: Callable[[str, str], Finding]) -> list[Finding]:
    """Return at most `SHOWN` of them and how many more there are."""
    if len(found) <= SHOWN:
        return list(found)
    more = kind(f"{len(found) - SHOWN} more images twice", "mend the first and run again")
    return [*found[:SHOWN], more]
