"""A hospital's CSV file as vectors, by rules that all hospitals share.

    python examples/tutorial_tables.py north.csv hospitals/north   makes hospitals/north/vectors.npz

Copy this file and write your own rules into it; the same copy is for all hospitals. These rules are
of UCI's Heart Disease data. A missing number becomes 0, the mean of a measured column, and a column
of its own says that it is missing. A patient without a diagnosis is unlabelled.
"""

import csv
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.core.errors import DataError, FedAppError

MEASURED = {
    "age": (54, 9), "trestbps": (132, 19), "chol": (245, 55), "thalach": (138, 26),
    "oldpeak": (0.9, 1.1), "ca": (0.7, 0.95),
}  # fmt: skip
"""Columns of numbers: mean and standard deviation, roughly, agreed upon and not of one hospital."""
CODED = {
    "sex": (0, 1), "cp": (1, 2, 3, 4), "fbs": (0, 1), "restecg": (0, 1, 2), "exang": (0, 1),
    "slope": (1, 2, 3), "thal": (3, 6, 7),
}  # fmt: skip
"""Columns of codes, with all that there are. Each but the first becomes a column of 0 and 1."""
MOST = 10
"""Standard deviations from the mean that a measured number may be, at most."""
FAR, TINY, ENOUGH = 3, 0.2, 5
"""A measured column seems to be in another unit if its own mean is more than FAR agreed standard
deviations from the agreed one, and its own standard deviation less than TINY of the agreed one.
Cholesterol in mmol/l is 4.3 away, with 0.03. Of four real hospitals no mean is more than 0.95 away,
and no spread is below 0.5. Of fewer than ENOUGH numbers nothing is said."""
DIAGNOSIS = "diagnosis"
CLASSES = {0: "healthy", 1: "ill", 2: "ill", 3: "ill", 4: "ill"}
"""What a diagnosis is called in `data.classes`."""
MISSING = ("", "?", "-9", "-9.0")
"""How what is missing is written. Take -9 out where a number may be -9."""
NEVER_ZERO = ("trestbps", "chol")
"""Columns in which a 0 means missing, since nobody alive has one."""


def read(file: Path) -> dict[str, NDArray[Any]]:
    """Return the patients of a CSV file: ids, vectors [n, D] and labels.

    An id is the number of the patient's line; of a cell with a line break in it, the last line.
    Raises DataError where a column is absent, not agreed upon, or seems to be in another unit, and
    naming the line where a cell is no number, no code, or no diagnosis that the rules know.
    """
    with file.open(newline="", encoding="utf-8-sig") as opened:
        rows = csv.DictReader(opened)
        if not rows.fieldnames:
            what = "is empty" if rows.fieldnames is None else "line 1 is empty"
            raise DataError(f"{file}: {what}: write the agreed names there, then the patients")
        agreed, there = {*MEASURED, *CODED, DIAGNOSIS}, list(rows.fieldnames)
        if absent := sorted(agreed - {*there}):
            raise DataError(
                f"{file}: no column {absent[0]!r} in line 1: write the agreed names there, with "
                "commas between them"
            )
        if other := [name for name in there if name not in agreed or there.count(name) > 1]:
            raise DataError(
                f"{file}: column {other[0]!r} is not agreed upon, or twice: leave it out"
            )
        ids, vectors, labels = [], [], []
        for row in rows:
            if None in row or None in row.values():
                raise DataError(f"{file}, line {rows.line_num}: not {len(agreed)} cells: fix it")
            cells = {name: cell.strip() for name, cell in row.items()}
            try:
                vectors.append(_vector(cells))
                labels.append(_label(cells[DIAGNOSIS]))
                ids.append(f"line {rows.line_num}")
            except ValueError as error:
                raise DataError(f"{file}, line {rows.line_num}: {error}") from error
    if not vectors:
        raise DataError(f"{file}: no patient in it: write a line for each")
    of_them = np.array(vectors, dtype=np.float32)
    for number, name in enumerate(MEASURED):
        scaled, missing = of_them[:, 2 * number], of_them[:, 2 * number + 1]
        _check_unit(file, name, scaled[missing == 0])
    return {"ids": np.array(ids), "vectors": of_them, "labels": np.array(labels)}


def _check_unit(file: Path, name: str, scaled: NDArray[np.float32]) -> None:
    """Raise DataError where a measured column seems to be in another unit.

    scaled: its numbers, as agreed standard deviations from the agreed mean; none is missing.
    """
    if len(scaled) < ENOUGH:
        return
    (mean, std), away, spread = MEASURED[name], scaled.mean(), scaled.std()
    if abs(away) > FAR and spread < TINY:
        raise DataError(
            f"{file}: {name} has mean {mean + std * away:.3g} and standard deviation "
            f"{std * spread:.2g} here, agreed are {mean} and {std}: write it in the agreed unit"
        )


def _vector(row: Mapping[str, str]) -> list[float]:
    found: list[float] = []
    for name, (mean, std) in MEASURED.items():
        value = _number(name, row[name])
        missing = np.isnan(value)
        scaled = 0.0 if missing else (value - mean) / std
        if abs(scaled) > MOST:
            raise ValueError(
                f"{name} is {value:g}, more than {MOST} standard deviations from {mean}: correct "
                "it, or write it in the agreed unit"
            )
        found += [scaled, missing]
    for name, codes in CODED.items():
        value = _number(name, row[name])
        _check_code(name, value, codes)
        found += [*(value == code for code in codes[1:]), np.isnan(value)]
    return found


def _label(cell: str) -> str:
    value = _number(DIAGNOSIS, cell)
    _check_code(DIAGNOSIS, value, CLASSES)
    return "" if np.isnan(value) else CLASSES[int(value)]


def _number(name: str, cell: str) -> float:
    """Return a cell as a number; NaN where it is missing."""
    if cell in MISSING:
        return np.nan
    try:
        value = float(cell)
    except ValueError:
        value = np.inf
    if not np.isfinite(value):
        raise ValueError(f"{name} is {cell!r}: write a number, or nothing where it is missing")
    return np.nan if value == 0 and name in NEVER_ZERO else value


def _check_code(name: str, value: float, codes: Collection[int]) -> None:
    if not np.isnan(value) and value not in codes:
        valid = ", ".join(map(str, codes))
        raise ValueError(f"{name} is {value:g}: write one of {valid}, or nothing")


def main(words: Sequence[str]) -> int:
    """Write the file of vectors. words: the CSV file and the hospital's folder."""
    if len(words) != 2:
        print(__doc__)
        return 2
    file, folder = map(Path, words)
    try:
        found = read(file)
    except FedAppError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{file}: {error.strerror}: name the CSV file, then a folder", file=sys.stderr)
        return 1
    except (UnicodeDecodeError, csv.Error) as error:
        print(f"{file}: {error}: save it as 'CSV UTF-8 (comma delimited)'", file=sys.stderr)
        return 1
    try:
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / "vectors.npz", allow_pickle=False, **found)
    except OSError as error:
        print(f"{folder}: {error.strerror}: name a folder to write to", file=sys.stderr)
        return 1
    count, wide = found["vectors"].shape
    print(f"{folder}/vectors.npz: {count} patients, {wide} numbers each")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
