"""What was run before: does it belong to this comparison, and can it be gone on with?"""

from collections.abc import Sequence

from fedapp.data.manifest import Manifest
from fedapp.experiment.codehash import code_hash
from fedapp.experiment.config import to_plain
from fedapp.experiment.resume import differences
from fedapp.experiment.runfolder import RunFolder
from fedapp.ground.errors import RunError
from fedapp.tools.compare.cells import Cell
from fedapp.tools.compare.grid import MIX

NAMED = 3
"""Cells named where there may be many."""


def check_cells(cells: Sequence[Cell]) -> list[str]:
    """Compare what lies in the cells' folders with the grid; return what deserves a warning.

    Raises RunError where a cell was run with other settings or on another split, or where Mix's
    parents have no models any more.
    """
    begun = [cell for cell in cells if cell.state() != "new"]
    facts = {cell: cell.run_facts() for cell in begun}
    lines = [_changed(cell) for cell in begun if facts[cell].get("experiment") != cell.digest]
    lines += [
        f"{cell.folder}: was run on another split than split.manifest holds: give another --out, "
        "or remove that folder to run it again"
        for cell in begun
        if _other_split(cell, facts[cell].get("manifest"))
    ]
    gone = [
        parent
        for cell in cells
        if cell.state() != "done"
        for parent in cell.parents
        if parent.state() == "done" and not parent.has_models
    ]
    lines += [
        f"{parent.folder}: its models were removed, and {MIX} needs them: remove that folder to "
        "run it again, or give another --out"
        for parent in gone
    ]
    if lines:
        more = [f"and {len(lines) - NAMED} more cells like these"] if len(lines) > NAMED else []
        raise RunError("\n".join(lines[:NAMED] + more))
    here = code_hash()[1]
    other = [cell for cell in begun if facts[cell].get("code") != here]
    if not other:
        return []
    return [
        f"{len(other)} of {len(cells)} cells were begun with other code than this "
        f"({facts[other[0]].get('code')}, now {here}), such as {other[0].name}; they are kept: "
        "remove their folders to run them again"
    ]


def can_resume(cell: Cell) -> bool:
    """Whether a begun cell's records are whole enough to go on from."""
    try:
        RunFolder(cell.folder).load_checkpoint()
    except RunError:
        return False
    return True


def _changed(cell: Cell) -> str:
    if cell.parents:
        what = "other settings of the methods it asks"
    else:
        plain = to_plain(cell.experiment)
        what = differences(cell.folder, plain) or "another version of this software"
    return (
        f"{cell.folder}: was run with other settings ({what}): give another --out, or remove that "
        "folder to run it again"
    )


def _other_split(cell: Cell, manifest: object) -> bool:
    """Whether the split that `split.manifest` names is another than the one that was run on."""
    split = cell.experiment.split
    if not split.manifest or manifest is None:
        return False
    return Manifest.load(split.manifest).showing(split.labels).digest() != manifest
