"""What a check found: faults, which a site must mend, and notes, which it should have read."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedapp.data.own import Fault

SHOWN = 50
"""Faults of one kind that are shown one by one."""


@dataclass(frozen=True)
class Remark:
    """One line, and one line of remedy or consequence. fault: it must be mended."""

    fault: bool
    what: str
    remedy: str


def fault(what: str, remedy: str) -> Remark:
    """Return something that must be mended."""
    return Remark(True, what, remedy)


def note(what: str, remedy: str) -> Remark:
    """Return something worth knowing."""
    return Remark(False, what, remedy)


def shown(count: int, hide_below: int) -> str:
    """Return a count of images as it may be seen: from 1 to `hide_below` - 1 as "< hide_below"."""
    return f"< {hide_below}" if 0 < count < hide_below else f"{count:,}"


def of_listing(faults: Sequence[Fault]) -> list[Remark]:
    """Return remarks on what is wrong with the files, by kind, at most `SHOWN` of each."""
    remarks = []
    for kind in dict.fromkeys(found.kind for found in faults):
        alike = [found for found in faults if found.kind == kind]
        remarks += [fault(f"{f.where}: {f.what}", f.remedy) for f in alike[:SHOWN]]
        if more := len(alike) - SHOWN:
            if more > 0:
                remarks.append(fault(f"{more} more: {kind.value}", "mend the first and run again"))
    return remarks
