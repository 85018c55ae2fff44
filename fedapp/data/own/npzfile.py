"""Vectors as NumPy writes them: an `.npz` file of arrays by name, none of them pickled."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.data.own.patients import PATIENT
from fedapp.data.own.rows import Rows, checked, no_text, unusable
from fedapp.ground.foreign import ForeignError, PickledError, arrays_of

_ARRAYS = {
    "ids": "id", "vectors": "", "labels": "label", "split": "split", PATIENT: PATIENT,
    "encoder": "encoder",
}  # fmt: skip


def read_npz(file: Path) -> Rows:
    """Read ids [n], vectors [n, D] and what there is of labels, split, patient (all [n]), encoder.

    The encoder may be one text for all. Raises VectorsError.
    """
    arrays = _arrays(file)
    if absent := [name for name in ("ids", "vectors") if name not in arrays]:
        what = f"no array {absent[0]!r}"
        raise unusable(file, what, f"write {', '.join(_ARRAYS)}; the first two are needed")
    values, count = arrays.pop("vectors"), len(arrays["ids"]) if arrays["ids"].ndim else 1
    texts = {_ARRAYS[name]: _texts(file, name, found, count) for name, found in arrays.items()}
    return checked(file, texts.pop("id"), values, texts)


def _arrays(file: Path) -> dict[str, NDArray[Any]]:
    def refuse(names: set[str]) -> None:
        if other := sorted(names - _ARRAYS.keys()):
            rule = f"only {', '.join(_ARRAYS)} are read"
            raise unusable(file, f"array {other[0]!r}", f"leave it out; {rule}")

    try:
        return arrays_of(file, refuse)
    except PickledError as error:
        remedy = "write numbers, or text by np.asarray(values, dtype=str)"
        raise unusable(file, str(error), remedy) from error
    except ForeignError as error:
        what = f"cannot be read as npz ({error})"
        raise unusable(file, what, "write it again by numpy.savez") from error


def _texts(file: Path, name: str, found: NDArray[Any], count: int) -> Sequence[str]:
    """Return an array's texts; one alone stands for all. Ids may be whole numbers."""
    if found.ndim == 0 and name == "encoder":
        found = np.repeat(found, count)
    if found.ndim != 1 or found.dtype.kind not in ("Uiu" if name in ("ids", PATIENT) else "U"):
        raise no_text(file, name, f"{found.dtype} {list(found.shape)}")
    return [str(one).strip() for one in found.tolist()]
