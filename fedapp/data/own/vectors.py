"""A site's vectors: `vectors.npz` or `vectors.parquet`, with an id, and perhaps a label, of each.

Stored embeddings and the rows of a table are such vectors. No file is unpickled.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedapp.data.own.entries import Entry, Listing, label_fault
from fedapp.data.own.faults import Fault, Kind
from fedapp.data.own.npzfile import read_npz
from fedapp.data.own.parquetfile import read_parquet
from fedapp.data.own.patients import PATIENT, alone, lacking
from fedapp.data.own.rows import Rows, VectorsError
from fedapp.data.own.split import part_fault, part_of, settled

READERS = {".npz": read_npz, ".parquet": read_parquet}
NAMES = tuple(f"vectors{ending}" for ending in READERS)
"""What the file is called in a site's folder."""
_ID = re.compile(r"[^=+\-@\s][^\x00-\x1f\x7f]{0,199}")
"""No spreadsheet takes such an id for a formula."""


def vectors_file(data: Path) -> Path | None:
    """Return the file of vectors that DATA is, or has in it; None: there is none."""
    if data.suffix.lower() in READERS:
        return data
    return next((data / name for name in NAMES if (data / name).is_file()), None)


def list_vectors(file: Path, classes: Sequence[str], size: int = 0, encoder: str = "") -> Listing:
    """List a file's vectors, ascending by id. Every fault is in the result, nothing is raised.

    classes: what labels may be; empty: whatever there is. size, encoder: `data.vector_size` and
    `data.encoder`; a size of 0: nothing is agreed upon.
    """
    try:
        rows = read_rows(file, size, encoder)
    except VectorsError as error:
        return Listing((), error.faults)
    faults: list[Fault] = []
    entries: list[Entry] = []
    strange: set[str] = set()
    for row, name in enumerate(rows.ids):
        where = f"{file.name}: id {name!r}"
        label, part, patient = (rows.text(key, row) for key in ("label", "split", PATIENT))
        if label and classes and label not in {*classes, *strange}:
            strange.add(label)
            faults.append(label_fault(where, label, classes))
        part = part_of(part)
        if fault := part_fault(where, part, label):
            faults.append(fault)
        faults += lacking(where, patient) if PATIENT in rows.texts else []
        entries.append(Entry(file, name, label, part, patient))
    entries = settled(file.name, entries, faults)
    faults += alone(entries) if PATIENT in rows.texts else []
    return Listing(tuple(entries), tuple(faults), values=rows.values)


def read_rows(file: Path, size: int = 0, encoder: str = "") -> Rows:
    """Read a file of vectors, ascending by id; what is said of them is not judged.

    size, encoder: as `list_vectors` has them. Raises VectorsError where it is no such file, and on
    ids and vectors that cannot be used.
    """
    rows = READERS[file.suffix.lower()](file).by_id()
    if faults := [*_of_ids(file, rows.ids), *_of_values(file, rows, size, encoder)]:
        raise VectorsError(faults)
    return rows


def _of_ids(file: Path, ids: Sequence[str]) -> list[Fault]:
    """Return what is wrong with the ids, the first of each kind."""
    found = []
    twice = [name for name, count in Counter(ids).items() if count > 1]
    if twice:
        what = f"id {twice[0]!r} stands twice{_more(twice)}"
        found.append(Fault(Kind.VECTORS, file.name, what, "keep one vector of each id"))
    if odd := [name for name in ids if not _ID.fullmatch(name)]:
        what = f"id {odd[0]!r}{_more(odd)}"
        remedy = "write 1 to 200 characters, without line breaks, and none of = + - @ in front"
        found.append(Fault(Kind.VECTORS, file.name, what, remedy))
    return found


def _of_values(file: Path, rows: Rows, size: int, encoder: str) -> list[Fault]:
    """Return what is wrong with the vectors themselves."""
    faults = []
    wide, made = rows.values.shape[1], sorted(set(rows.texts.get("encoder", [""])))
    if bad := [rows.ids[i] for i in (~rows.values.isfinite().all(1)).nonzero()[:, 0].tolist()]:
        what = f"the vector of id {bad[0]!r} holds NaN or an infinite number{_more(bad)}"
        faults.append(Fault(Kind.VECTORS, file.name, what, "fill it in, or leave the line out"))
    if size and wide != size:
        what = f"vectors of {wide} numbers, must have {size} (data.vector_size)"
        remedy = "make them by what all sites agreed upon"
        faults.append(Fault(Kind.VECTORS, file.name, what, remedy))
    if len(made) > 1:
        what = f"embeddings of {len(made)} encoders, {made[0]!r} and {made[1]!r}"
        faults.append(Fault(Kind.VECTORS, file.name, what, "compute all of them with one"))
    elif size and made[0] != encoder:
        what = f"encoder {made[0]!r}, must be {encoder!r} (data.encoder)"
        remedy = "compute the vectors with the agreed encoder, and write its name as agreed"
        faults.append(Fault(Kind.VECTORS, file.name, what, remedy))
    return faults


def _more(these: Sequence[str]) -> str:
    return f" (and {len(these) - 1} more)" if these[1:] else ""
