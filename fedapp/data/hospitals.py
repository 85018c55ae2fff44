"""Published data of hospitals as they are: four hospitals, and who has heart disease.

UCI's Heart Disease data (Janosi, Steinbrunn, Pfisterer and Detrano 1988, doi:10.24432/C52P4X,
CC BY 4.0): 920 patients, of whom 13 numbers are asked, many of them missing. `read_heart` keeps all
patients, and a column beside each number says whether it is missing. `read_flamby` is the part, the
scaling and the test part of FLamby's Fed-Heart-Disease (Ogier du Terrail et al. 2022): 740 patients
of whom ten columns are complete.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedapp.core.errors import DataError
from fedapp.data.inputs import DataSet, NaturalSites

CENTRES = {
    "cleveland": "cleveland",
    "hungarian": "hungarian",
    "switzerland": "switzerland",
    "va": "long_beach",
}
"""The hospitals: how their file is called, and how this project calls them."""
NAMES = tuple(CENTRES.values())
FOLDER = "heart"
ADDRESS = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease"
"""Where UCI has the four files."""
CLASSES = ("healthy", "ill")
COLUMNS = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak",
    "slope", "ca", "thal",
)  # fmt: skip
"""The numbers of a patient, as UCI calls them; a file's last column is the diagnosis."""
MISSING = ("?", "", "-9")
"""How the files write that a number is missing, beside a 0 where nobody alive has one."""
NEVER_ZERO = ("trestbps", "chol")
"""Blood pressure and cholesterol; the latter is 0 for all of Switzerland's patients."""
CODES = {
    "sex": (0, 1), "cp": (1, 2, 3, 4), "fbs": (0, 1), "restecg": (0, 1, 2), "exang": (0, 1),
    "slope": (1, 2, 3), "thal": (3, 6, 7),
}  # fmt: skip
"""Columns whose numbers are codes, with all that there are. Each code but the first becomes a
column of 0 and 1."""
DIAGNOSES = (0, 1, 2, 3, 4)
"""0: healthy; above it: ill, how badly."""
SCALES = {
    "age": (54.0, 9.0), "trestbps": (132.0, 19.0), "chol": (245.0, 55.0), "thalach": (138.0, 26.0),
    "oldpeak": (0.9, 1.1), "ca": (0.7, 0.95),
}  # fmt: skip
"""Mean and standard deviation of the measured columns, in years, mmHg, mg/dl, beats a minute, mm
and vessels: rounded, the same at all hospitals and for every split, so that no test patient moves
them."""
RANGES = {
    "age": (1, 120), "trestbps": (0, 300), "chol": (0, 1000), "thalach": (20, 250),
    "oldpeak": (-10, 10), "ca": (0, 9),
}  # fmt: skip
"""Least and greatest number of a measured column that a file may hold, in those units."""
FLAMBY_SEED, FLAMBY_TRAIN, FLAMBY_LEAST = 43, 0.66, 3
"""Of FLamby's split of each hospital's patients, by scikit-learn's `train_test_split`. Third: the
least number of them."""


@dataclass(frozen=True)
class Centre:
    """One hospital's file.

    numbers: float64 [n, 13], NaN where missing. ill: int64 [n], 1 where heart disease was found.
    """

    numbers: NDArray[np.float64]
    ill: NDArray[np.int64]


def taking_part(names: Sequence[str]) -> Mapping[str, str]:
    """Return those of `CENTRES` that are called so; all of them where no name is known."""
    return {file: name for file, name in CENTRES.items() if name in names} or CENTRES


def files(names: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the paths of these hospitals' files below `data.root`, of `taking_part`.

    UCI calls them processed.<name>.data.
    """
    return tuple(f"{FOLDER}/{file}.csv" for file in taking_part(names))


def fetch(root: Path, names: Sequence[str] = ()) -> None:
    """Download the files of `taking_part` to where `files` says."""
    from torchvision.datasets.utils import download_url

    for file in taking_part(names):
        address = f"{ADDRESS}/processed.{file}.data"
        download_url(address, root / FOLDER, filename=f"{file}.csv")


def read_heart(root: Path, names: Sequence[str] = ()) -> DataSet:
    """Return all patients of the hospitals of `taking_part`, each with its hospital.

    Of all four that is float32 [920, 31]. No other hospital's file need be there.

    The columns are those of `COLUMNS` in their order: a measured one scaled by `SCALES`, a coded
    one as a column of 0 and 1 for each of its `CODES` but the first, and behind each a column that
    is 1 where the number is missing. The number itself is then 0, the mean of a scaled one.
    """
    centres = [read_centre(root / file) for file in files(names)]
    rows = [_encoded(centre.numbers) for centre in centres]
    return _pooled(names, rows, [centre.ill for centre in centres], None)


def read_flamby(root: Path, names: Sequence[str] = ()) -> DataSet:
    """Return FLamby's patients of `taking_part`, with its split into training and test.

    Of all four hospitals that is float32 [740, 13].

    The last three columns of the files are left out, then patients with a gap; a cholesterol of 0
    counts as measured. Every hospital scales its columns by its own training patients.
    """
    rows, ill, tests = [], [], []
    for file in files(names):
        centre = read_centre(root / file, zeros_missing=False)
        numbers = centre.numbers[:, :10]
        whole = ~np.isnan(numbers).any(1)
        values, labels = _dummies(numbers[whole]), centre.ill[whole]
        if len(labels) < FLAMBY_LEAST:
            raise DataError(
                f"{root / file}: {len(labels)} patients whose first ten columns are complete, must "
                f"be {FLAMBY_LEAST} or more to split: put UCI's file there, or take data.name=heart"
            )
        test = flamby_test(labels)
        mean, std = values[~test].mean(0), values[~test].std(0)
        rows.append((values - mean) / np.where(std > 0, std, 1.0))
        ill.append(labels)
        tests.append(test)
    return _pooled(names, rows, ill, np.concatenate(tests))


def flamby_test(ill: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which of a hospital's patients FLamby tests on, bool [n]. ill: its labels, [n]."""
    from sklearn.model_selection import train_test_split

    common = np.bincount(ill, minlength=2).min() > 2
    _, held = train_test_split(
        np.arange(len(ill)),
        train_size=FLAMBY_TRAIN,
        test_size=1 - FLAMBY_TRAIN,
        random_state=FLAMBY_SEED,
        shuffle=True,
        stratify=ill if common else None,
    )
    test = np.zeros(len(ill), np.bool_)
    test[held] = True
    return test


def read_centre(path: Path, zeros_missing: bool = True) -> Centre:
    """Return a hospital's file.

    zeros_missing: whether a blood pressure or cholesterol of 0 counts as missing. Raises DataError
    naming the line, where a row has another number of columns, holds what is no number, a code
    that a column does not have, a number outside `RANGES`, or a diagnosis outside 0 to 4.
    """
    rows = []
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(COLUMNS) + 1:
            raise DataError(
                f"{path}, line {number}: {len(cells)} columns, must be {len(COLUMNS) + 1}: "
                f"{', '.join(COLUMNS)}, diagnosis, without a header: put UCI's file there"
            )
        try:
            rows.append([_number(cell) for cell in cells])
        except ValueError as error:
            raise DataError(
                f"{path}, line {number}: {error} is no number, and none of {MISSING}, which mean "
                "missing: put UCI's file there, without a header"
            ) from error
        if wrong := _impossible(rows[-1]):
            raise DataError(f"{path}, line {number}: {wrong}: put UCI's file there")
    if not rows:
        raise DataError(f"{path}: no patient in it: put UCI's file there")
    table = np.array(rows)
    numbers = table[:, :-1]
    if zeros_missing:
        for name in NEVER_ZERO:
            column = numbers[:, COLUMNS.index(name)]
            column[column == 0] = np.nan
    return Centre(numbers, (table[:, -1] > 0).astype(np.int64))


def _number(cell: str) -> float:
    if cell in MISSING:
        return np.nan
    try:
        value = float(cell)
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise ValueError(repr(cell[:40]))
    return np.nan if value == -9 else value  # as `MISSING` says, written "-9.0"


def _impossible(row: list[float]) -> str:
    """Say which number of a row its column cannot have, and which it can; empty: none."""
    known = [*(CODES.get(name) for name in COLUMNS), DIAGNOSES]
    for name, value, codes in zip((*COLUMNS, "diagnosis"), row, known, strict=True):
        missing = np.isnan(value)
        is_value = "is missing" if missing else f"is {value:g}"
        if missing and name != "diagnosis":
            continue
        if codes is not None and value not in codes:
            return f"{name} {is_value}, must be one of {', '.join(map(str, codes))}"
        if codes is None and not RANGES[name][0] <= value <= RANGES[name][1]:
            return f"{name} {is_value}, must be between {RANGES[name][0]} and {RANGES[name][1]}"
    return ""


def _encoded(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return [n, 31] of [n, 13], as `read_heart` says."""
    found = []
    for name, column in zip(COLUMNS, numbers.T, strict=True):
        missing = np.isnan(column)
        if name in CODES:
            found += [column == code for code in CODES[name][1:]]
        else:
            mean, std = SCALES[name]
            found.append(np.where(missing, 0.0, (column - mean) / std))
        found.append(missing)
    return np.stack(found, 1).astype(np.float64)


def _dummies(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return [n, 13] of FLamby's ten columns [n, 10]: a coded one as a column for each code."""
    found = []
    for name, column in zip(COLUMNS, numbers.T, strict=False):
        found += [column == code for code in CODES[name][1:]] if name in CODES else [column]
    return np.stack(found, 1).astype(np.float64)


def _pooled(
    names: Sequence[str],
    rows: list[NDArray[np.float64]],
    ill: list[NDArray[np.int64]],
    test: NDArray[np.bool_] | None,
) -> DataSet:
    inputs = torch.from_numpy(np.concatenate(rows).astype(np.float32))
    places = [NAMES.index(name) for name in taking_part(names).values()]
    owner = np.repeat(places, [len(of) for of in ill])
    columns = inputs.shape[1]
    return DataSet(
        inputs,
        torch.from_numpy(np.concatenate(ill)),
        CLASSES,
        mean=(0.0,) * columns,
        std=(1.0,) * columns,
        sites=NaturalSites(NAMES, owner, test),
    )
