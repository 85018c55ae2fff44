"""What a check found: faults, which must be mended, and notes, which should be read."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedapp.data.own import Fault

SHOWN = 50
"""How many faults of one kind are shown one by one."""


@dataclass(frozen=True)
class Remark:
    """One thing that was found. fault: it must be mended. remedy: what to do, or what follows."""

    fault: bool
    what: str
    remedy: str


def fault(what: str, remedy: str) -> Remark:
    """Return a remark that must be mended."""
    return Remark(True, what, remedy)


def note(what: str, remedy: str) -> Remark:
    """Return a remark that is only worth knowing."""
    return Remark(False, what, remedy)


def shown(count: int, hide_below: int) -> str:
    """Return a count as text. From 1 to hide_below - 1 it is hidden, as "< hide_below"."""
    return f"< {hide_below}" if 0 < count < hide_below else f"{count:,}"


def of_listing(faults: Sequence[Fault]) -> list[Remark]:
    """Return a fault for each thing wrong with the files, at most `SHOWN` of each kind."""
    remarks = []
    for kind in dict.fromkeys(found.kind for found in faults):
        alike = [found for found in faults if found.kind == kind]
        remarks += [fault(f"{f.where}: {f.what}", f.remedy) for f in alike[:SHOWN]]
        if more := len(alike) - SHOWN:
            if more > 0:
                remarks.append(fault(f"{more} more: {kind.value}", "fix the first and run again"))
    return remarks
