"""A site's vectors: `vectors.npz` or `vectors.parquet`, with an id and optionally a label of each.

Stored embeddings and the rows of a table are such vectors. An .npz file has named arrays as NumPy
writes them. A Parquet file has the columns id, label, split, patient, encoder, and f0 to fN or
vector. No file is unpickled.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedapp.core.errors import DataError
from fedapp.core.optional_dependencies import NotInstalled, needs
from fedapp.core.untrusted_files import (
    PickledArrayError,
    UntrustedFileError,
    check_unpacked,
    read_npz_arrays,
)
from fedapp.data.folder import nfc
from fedapp.data.own.entries import (
    PATIENT,
    Entry,
    Fault,
    Kind,
    Listing,
    check_label,
    missing_patient_faults,
    part_fault,
    part_named,
    single_patient_faults,
    with_settled_parts,
)

TEXTS = ("label", "split", PATIENT, "encoder")
"""Optional columns of text, beside id and vector."""
_ID = re.compile(r"[^=+\-@\s\x00-\x1f\x7f][^\x00-\x1f\x7f]{0,199}")
"""Valid ids. No spreadsheet takes them for a formula."""
_ARRAYS = {
    "ids": "id", "vectors": "", "labels": "label", "split": "split", PATIENT: PATIENT,
    "encoder": "encoder",
}  # fmt: skip
VECTOR = "vector"
_NUMBERED = re.compile(r"f(0|[1-9]\d*)")


class VectorsError(DataError):
    """A file of vectors cannot be used. faults: why, at least one; the message is the first one."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__(str(faults[0]))
        self.faults = tuple(faults)


@dataclass(frozen=True, eq=False)
class Rows:
    """Vectors in the order of a file.

    ids: one for each vector.
    values: float32 [n, D], n and D >= 1, possibly not finite.
    texts: n texts for each key of `TEXTS` that the file has; an empty text: missing.
    """

    ids: Sequence[str]
    values: Tensor
    texts: Mapping[str, Sequence[str]]

    @property
    def encoder(self) -> str:
        """The encoder that made the vectors; empty: unknown."""
        return self.texts["encoder"][0] if "encoder" in self.texts else ""

    def text(self, key: str, row: int) -> str:
        """Return the text of a row; empty where the file has no such column."""
        return self.texts[key][row] if key in self.texts else ""

    def by_id(self) -> "Rows":
        """Return the same rows, sorted by id."""
        order = sorted(range(len(self.ids)), key=self.ids.__getitem__)
        texts = {key: [found[row] for row in order] for key, found in self.texts.items()}
        return Rows([self.ids[row] for row in order], self.values[torch.tensor(order)], texts)


def read_npz(file: Path) -> Rows:
    """Read ids [n], vectors [n, D], and optionally labels, split, patient (all [n]) and encoder.

    The encoder may be a single text for all vectors. Raises VectorsError.
    """
    arrays = _npz_arrays(file)
    if absent := [name for name in ("ids", "vectors") if name not in arrays]:
        what = f"no array {absent[0]!r}"
        raise file_error(file, what, f"write {', '.join(_ARRAYS)}; the first two are needed")
    values, count = arrays.pop("vectors"), len(arrays["ids"]) if arrays["ids"].ndim else 1
    texts = {_ARRAYS[name]: _npz_texts(file, name, found, count) for name, found in arrays.items()}
    return checked_rows(file, texts.pop("id"), values, texts)


def _npz_arrays(file: Path) -> dict[str, NDArray[Any]]:
    def refuse(names: set[str]) -> None:
        if other := sorted(names - _ARRAYS.keys()):
            rule = f"only {', '.join(_ARRAYS)} are read"
            raise file_error(file, f"array {other[0]!r}", f"leave it out; {rule}")

    try:
        return read_npz_arrays(file, refuse)
    except PickledArrayError as error:
        remedy = "write numbers, or text by np.asarray(values, dtype=str)"
        raise file_error(file, str(error), remedy) from error
    except UntrustedFileError as error:
        if isinstance(error.__cause__, OSError):
            what = f"cannot be read ({error.__cause__.strerror})"
            raise file_error(file, what, "name a file that this user may read") from error
        what = f"cannot be read as npz ({error})"
        raise file_error(file, what, "write it again by numpy.savez") from error


def _npz_texts(file: Path, name: str, found: NDArray[Any], count: int) -> Sequence[str]:
    """Return the texts of an array; a single encoder applies to all. Ids may be integers."""
    if found.ndim == 0 and name == "encoder":
        found = np.repeat(found, count)
    if found.ndim != 1 or found.dtype.kind not in ("Uiu" if name in ("ids", PATIENT) else "U"):
        raise not_text_error(file, name, f"{found.dtype} {list(found.shape)}")
    return [str(one).strip() for one in found.tolist()]


def read_parquet(file: Path) -> Rows:
    """Read a table with one row for each vector. Raises VectorsError."""
    try:
        parquet = needs("parquet", "pyarrow.parquet")
    except NotInstalled as error:
        raise file_error(file, error.what, error.remedy) from error
    try:
        opened: Any = parquet.ParquetFile(file)
        # Eight bytes for each value: a file stores equal values once, however many there are.
        check_unpacked(file, 8 * opened.metadata.num_rows * opened.metadata.num_columns)
        table = opened.read()
    except Exception as error:  # arrow raises its own types and Python's
        what = f"cannot be read as Parquet ({' '.join(str(error).split())})"
        raise file_error(file, what, "write it again, whole") from error
    names = list(table.column_names)
    numbered = [name for name in names if _NUMBERED.fullmatch(name)]
    if "id" not in names:
        raise file_error(file, "no column 'id'", "name each vector in it")
    if other := [name for name in names if name not in ("id", VECTOR, *TEXTS, *numbered)]:
        rule = f"only id, {', '.join(TEXTS)}, and f0 to fN or {VECTOR}, are read"
        raise file_error(file, f"column {other[0]!r}", f"leave it out; {rule}")
    if twice := [name for name in names if names.count(name) > 1]:
        raise file_error(file, f"column {twice[0]!r} stands twice", "keep one")
    if (VECTOR in names) == bool(numbered):
        what = f"{'both' if numbered else 'neither'} f0 to fN and {VECTOR}"
        raise file_error(file, what, "write the numbers one way")
    texts = {name: _parquet_texts(file, table, name) for name in ("id", *TEXTS) if name in names}
    values = _numbered_columns(file, table, numbered) if numbered else _column_of_lists(file, table)
    return checked_rows(file, texts.pop("id"), values, texts)


def _numbered_columns(file: Path, table: Any, names: Sequence[str]) -> NDArray[Any]:
    """Return the columns f0 to fN side by side; an empty cell becomes NaN."""
    wanted = [f"f{number}" for number in range(len(names))]
    if absent := [name for name in wanted if name not in names]:
        what = f"no column {absent[0]!r}, but {len(names)} are numbered"
        raise file_error(file, what, "number them from f0 on, without a gap")
    columns = [_numbers(file, name, table.column(name).combine_chunks()) for name in wanted]
    return np.stack(columns, axis=1)


def _column_of_lists(file: Path, table: Any) -> NDArray[Any]:
    """Return the rows of a column of lists that have one length."""
    column = table.column(VECTOR).combine_chunks()
    if "list" not in str(column.type):
        raise file_error(file, f"{VECTOR} is {column.type}, no list", "write lists of numbers")
    if column.null_count or not len(column):
        what = f"{column.null_count} of {len(column)} rows have no {VECTOR}"
        raise file_error(file, what, "fill them in, or leave them out")
    lengths = sorted(needs("parquet", "pyarrow.compute").list_value_length(column).to_pylist())
    if lengths[0] != lengths[-1]:
        what = f"vectors of {lengths[0]} and of {lengths[-1]} numbers"
        raise file_error(file, what, "write vectors of one length")
    return _numbers(file, VECTOR, column.flatten()).reshape(len(column), -1)


def _numbers(file: Path, name: str, column: Any) -> NDArray[Any]:
    found: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    if found.dtype.kind not in "fiu":
        raise file_error(file, f"{name} holds {column.type}, no numbers", "write numbers")
    return found


def _parquet_texts(file: Path, table: Any, name: str) -> list[str]:
    """Return the texts of a column; empty for an empty cell. Ids and patients may be integers."""
    column = table.column(name)
    cells = column.to_pylist()
    whole = (str, int) if name in ("id", PATIENT) else (str,)
    if {type(cell) for cell in cells} - {*whole, type(None)}:
        raise not_text_error(file, name, str(column.type))
    return ["" if cell is None else str(cell).strip() for cell in cells]


def file_error(file: Path, what: str, remedy: str, kind: Kind = Kind.VECTORS) -> VectorsError:
    """Return the error of a file with one fault."""
    return VectorsError([Fault(kind, file.name, what, remedy)])


def checked_rows(
    file: Path, ids: Sequence[str], values: NDArray[Any], texts: Mapping[str, Sequence[str]]
) -> Rows:
    """Return rows after checking that lengths and types fit. Raises VectorsError."""
    if values.ndim != 2 or 0 in values.shape or values.dtype.kind not in "fiu":
        what = f"vectors are {values.dtype} {list(values.shape)}, must be numbers [n, D]"
        raise file_error(file, what, "write one row of D numbers for each id")
    for name, found in {"ids": ids, **texts}.items():
        if len(found) != len(values):
            what = f"{len(values)} vectors, but {len(found)} of {name}"
            raise file_error(file, what, "write one for each vector, in the same order")
    with np.errstate(over="ignore"):  # too large numbers become infinite, a fault later
        numbers = np.ascontiguousarray(values, np.float32)
    texts = {name: [nfc(text) for text in found] for name, found in texts.items()}
    return Rows(ids, torch.from_numpy(numbers.copy()), texts)


def not_text_error(file: Path, name: str, kind: str) -> VectorsError:
    """Return the error of a column that contains something other than text."""
    remedy = "write the names of data.classes" if "label" in name else "write it as text"
    of = Kind.LABEL if "label" in name else Kind.VECTORS
    return file_error(file, f"{name} are {kind}, must be text", remedy, of)


READERS = {".npz": read_npz, ".parquet": read_parquet}
NAMES = tuple(f"vectors{ending}" for ending in READERS)
"""Names of the file in a site's folder."""


def vectors_file(data: Path) -> Path | None:
    """Return the file of vectors that `data` is, or contains; None if there is none."""
    if data.suffix.lower() in READERS:
        return data
    return next((data / name for name in NAMES if (data / name).is_file()), None)


def list_vectors(file: Path, classes: Sequence[str], size: int = 0, encoder: str = "") -> Listing:
    """List the vectors of a file, sorted by id. Every fault is in the result; nothing is raised.

    classes: the accepted labels; empty: any.
    size, encoder: `data.vector_size` and `data.encoder`; a size of 0: nothing was agreed on.
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
        check_label(where, label, classes, strange, faults)
        part = part_named(part)
        if fault := part_fault(where, part, label):
            faults.append(fault)
        faults += missing_patient_faults(where, patient) if PATIENT in rows.texts else []
        entries.append(Entry(file, name, label, part, patient))
    entries = with_settled_parts(file.name, entries, faults)
    faults += single_patient_faults(entries) if PATIENT in rows.texts else []
    return Listing(tuple(entries), tuple(faults), values=rows.values)


def read_rows(file: Path, size: int = 0, encoder: str = "") -> Rows:
    """Read a file of vectors, sorted by id, without checking their labels and parts.

    size, encoder: as for `list_vectors`.
    Raises VectorsError where it is not such a file, and where ids or vectors cannot be used.
    """
    rows = READERS[file.suffix.lower()](file).by_id()
    if faults := [*_of_ids(file, rows.ids), *_of_values(file, rows, size, encoder)]:
        raise VectorsError(faults)
    return rows


def _of_ids(file: Path, ids: Sequence[str]) -> list[Fault]:
    """Return what is wrong with the ids, the first fault of each kind."""
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
