"""What can be wrong with a site's own data, said to the site in full and to the server in part.

A file's name may hold a patient's, and so may a label that is none (two columns exchanged). So a
fault has two wordings: one with names for the site's own screen and log, one without for the
server.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from fedapp.ground.errors import ImageError, one_line


class Kind(StrEnum):
    """Kinds of faults; the values are what the server is told."""

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
    """One fault: where it is, what rule is broken, and what to do."""

    kind: Kind
    where: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{one_line(self.where, 500)}: {one_line(self.what, 500)}: {self.remedy}"


class OwnDataError(ImageError):
    """A site's data cannot be used. The message names files: it is for the site alone."""

    def __init__(self, site: str, faults: Sequence[Fault]) -> None:
        more = f" (and {len(faults) - 1} more; `fedapp check` lists them)" if faults[1:] else ""
        first = faults[0]
        super().__init__(f"site {site}: {first.where}", first.what, f"{first.remedy}{more}")
        kinds = list(dict.fromkeys(fault.kind.value for fault in faults))
        self.told = (
            f"site {site!r} cannot use its data: {'; '.join(kinds)}: `fedapp check` at the site, "
            "and its log, name the files"
        )
