"""Vectors as a Parquet file: columns id, label, split, patient, encoder, and f0 to fN or vector."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.data.own.patients import PATIENT
from fedapp.data.own.rows import TEXTS, Rows, checked, no_text, unusable
from fedapp.ground.extras import NotInstalled, needs
from fedapp.ground.foreign import check_unpacked

VECTOR = "vector"
_NUMBERED = re.compile(r"f(0|[1-9]\d*)")


def read_parquet(file: Path) -> Rows:
    """Read a table with a row for each vector. Raises VectorsError."""
    try:
        parquet = needs("parquet", "pyarrow.parquet")
    except NotInstalled as error:
        raise unusable(file, error.what, error.remedy) from error
    try:
        opened: Any = parquet.ParquetFile(file)
        # Eight bytes a value: equal ones are written once, however many there are.
        check_unpacked(file, 8 * opened.metadata.num_rows * opened.metadata.num_columns)
        table = opened.read()
    except Exception as error:  # arrow's own kinds, Python's, and of what is no text
        what = f"cannot be read as Parquet ({' '.join(str(error).split())})"
        raise unusable(file, what, "write it again, whole") from error
    names = list(table.column_names)
    numbered = [name for name in names if _NUMBERED.fullmatch(name)]
    if "id" not in names:
        raise unusable(file, "no column 'id'", "name each vector in it")
    if other := [name for name in names if name not in ("id", VECTOR, *TEXTS, *numbered)]:
        rule = f"only id, {', '.join(TEXTS)}, and f0 to fN or {VECTOR}, are read"
        raise unusable(file, f"column {other[0]!r}", f"leave it out; {rule}")
    if twice := [name for name in names if names.count(name) > 1]:
        raise unusable(file, f"column {twice[0]!r} stands twice", "keep one")
    if (VECTOR in names) == bool(numbered):
        what = f"{'both' if numbered else 'neither'} f0 to fN and {VECTOR}"
        raise unusable(file, what, "write the numbers one way")
    texts = {name: _texts(file, table, name) for name in ("id", *TEXTS) if name in names}
    values = _columns(file, table, numbered) if numbered else _lists(file, table)
    return checked(file, texts.pop("id"), values, texts)


def _columns(file: Path, table: Any, names: Sequence[str]) -> NDArray[Any]:
    """Return f0 to fN side by side; an empty cell is NaN."""
    wanted = [f"f{number}" for number in range(len(names))]
    if absent := [name for name in wanted if name not in names]:
        what = f"no column {absent[0]!r}, but {len(names)} are numbered"
        raise unusable(file, what, "number them from f0 on, without a gap")
    columns = [_numbers(file, name, table.column(name).combine_chunks()) for name in wanted]
    return np.stack(columns, axis=1)


def _lists(file: Path, table: Any) -> NDArray[Any]:
    """Return the rows of a column of lists, all of one length."""
    column = table.column(VECTOR).combine_chunks()
    if "list" not in str(column.type):
        raise unusable(file, f"{VECTOR} is {column.type}, no list", "write lists of numbers")
    if column.null_count or not len(column):
        what = f"{column.null_count} of {len(column)} rows have no {VECTOR}"
        raise unusable(file, what, "fill them in, or leave them out")
    lengths = sorted(needs("parquet", "pyarrow.compute").list_value_length(column).to_pylist())
    if lengths[0] != lengths[-1]:
        what = f"vectors of {lengths[0]} and of {lengths[-1]} numbers"
        raise unusable(file, what, "write vectors of one length")
    return _numbers(file, VECTOR, column.flatten()).reshape(len(column), -1)


def _numbers(file: Path, name: str, column: Any) -> NDArray[Any]:
    found: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    if found.dtype.kind not in "fiu":
        raise unusable(file, f"{name} holds {column.type}, no numbers", "write numbers")
    return found


def _texts(file: Path, table: Any, name: str) -> list[str]:
    """Return a column's texts, empty where a cell is. Ids and patients may be whole numbers."""
    column = table.column(name)
    cells = column.to_pylist()
    whole = (str, int) if name in ("id", PATIENT) else (str,)
    if {type(cell) for cell in cells} - {*whole, type(None)}:
        raise no_text(file, name, str(column.type))
    return ["" if cell is None else str(cell).strip() for cell in cells]
