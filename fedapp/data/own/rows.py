"""What a file of vectors holds, whatever its format, before anything in it is judged."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedapp.data.folder import composed
from fedapp.data.own.faults import Fault, Kind
from fedapp.data.own.patients import PATIENT
from fedapp.ground.errors import DataError

TEXTS = ("label", "split", PATIENT, "encoder")
"""What may stand beside id and vector."""


class VectorsError(DataError):
    """A file of vectors cannot be used. faults: why, one or more; the message is the first."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__(str(faults[0]))
        self.faults = tuple(faults)


@dataclass(frozen=True, eq=False)
class Rows:
    """Vectors in a file's order.

    ids: one each. values: float32 [n, D], n and D >= 1, perhaps not finite. texts: by a key of
    `TEXTS`, n of each that is there; an empty text: not said.
    """

    ids: Sequence[str]
    values: Tensor
    texts: Mapping[str, Sequence[str]]

    @property
    def encoder(self) -> str:
        """What made the vectors; empty: nobody says."""
        return self.texts["encoder"][0] if "encoder" in self.texts else ""

    def text(self, key: str, row: int) -> str:
        """Return a row's text; empty where the file has no such column."""
        return self.texts[key][row] if key in self.texts else ""

    def by_id(self) -> "Rows":
        """Return the same rows, ascending by id."""
        order = sorted(range(len(self.ids)), key=self.ids.__getitem__)
        texts = {key: [found[row] for row in order] for key, found in self.texts.items()}
        return Rows([self.ids[row] for row in order], self.values[torch.tensor(order)], texts)


def unusable(file: Path, what: str, remedy: str, kind: Kind = Kind.VECTORS) -> VectorsError:
    """Return the error of a file with one fault."""
    return VectorsError([Fault(kind, file.name, what, remedy)])


def checked(
    file: Path, ids: Sequence[str], values: NDArray[Any], texts: Mapping[str, Sequence[str]]
) -> Rows:
    """Return rows whose lengths and types fit. Raises VectorsError."""
    if values.ndim != 2 or 0 in values.shape or values.dtype.kind not in "fiu":
        what = f"vectors are {values.dtype} {list(values.shape)}, must be numbers [n, D]"
        raise unusable(file, what, "write one row of D numbers for each id")
    for name, found in {"ids": ids, **texts}.items():
        if len(found) != len(values):
            what = f"{len(values)} vectors, but {len(found)} of {name}"
            raise unusable(file, what, "write one for each vector, in the same order")
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite: a fault, later
        numbers = np.ascontiguousarray(values, np.float32)
    texts = {name: [composed(text) for text in found] for name, found in texts.items()}
    return Rows(ids, torch.from_numpy(numbers.copy()), texts)


def no_text(file: Path, name: str, kind: str) -> VectorsError:
    """Return the error of a column that holds something else than text."""
    remedy = "write the names of data.classes" if "label" in name else "write it as text"
    of = Kind.LABEL if "label" in name else Kind.VECTORS
    return unusable(file, f"{name} are {kind}, must be text", remedy, of)
