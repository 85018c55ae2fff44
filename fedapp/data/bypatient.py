"""A split data set in which several inputs are of one patient: patients are dealt, not inputs."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.data.inputs import UNKNOWN
from fedapp.data.manifest import Manifest, labels_digest
from fedapp.ground.errors import DataError
from fedapp.ground.settings import SplitSettings

Numbers = NDArray[np.int64]


def numbered(patients: Sequence[Any], count: int) -> Numbers:
    """Return which inputs are of one patient, as numbers [count]. Raises DataError.

    patients: a name or number of each input; None, NaN or an empty text is none.
    """
    names = list(patients)
    if len(names) != count:
        raise DataError(f"patients are {len(names)}, must be {count}: give one for each input")
    lacking = [i for i, name in enumerate(names) if name is None or name != name or name == ""]
    if lacking:
        raise DataError(
            f"input {lacking[0]} and {len(lacking) - 1} more have no patient, so nobody knows "
            "whose they are: name each one's, or leave patients out"
        )
    found = np.unique(np.array([str(name) for name in names]), return_inverse=True)[1]
    if not found.any():
        raise DataError(
            f"all {count} inputs are of one patient, to learn from and to be tested on: add others'"
        )
    return found.astype(np.int64)


def patient_in(path: str, pattern: str) -> str:
    """Return the patient that an image's path names; empty: none.

    pattern: `data.patients`, a regular expression with one group.
    """
    found = re.search(pattern, path)
    return (found[1] or "") if found else ""


def by_paths(paths: Sequence[str], pattern: str) -> Numbers:
    """Return which images are of one patient, as `numbered` does. Raises DataError, and names one.

    paths: below the data. pattern: as in `patient_in`.
    """
    names = [patient_in(path, pattern) for path in paths]
    if not all(names):
        raise DataError(
            f"{paths[names.index('')]}: its path does not match data.patients = {pattern!r}, so "
            "nobody knows whose it is: rename the file as the others are, or correct the pattern"
        )
    return numbered(names, len(paths))


def dealt_by_patient(
    classes: Numbers,
    patients: Numbers,
    settings: SplitSettings,
    deal: Callable[[Numbers], Manifest],
) -> Manifest:
    """Return who owns each input, all of a patient being at one site, in one part, for one use.

    classes: [N], all known. patients: [N], from 0. deal: deals patients as if each were one input
    of his most frequent class, the first of several. Raises DataError where inputs themselves are
    to be dealt.
    """
    for key in ("bags", "test_images"):
        if getattr(settings, key):
            raise DataError(
                f"split.{key} deals single inputs, and several are of one patient: leave it out"
            )
    if (classes == UNKNOWN).any():
        raise DataError("inputs of patients have unknown classes: leave these, or patients, out")
    counts = np.zeros((patients.max() + 1, classes.max() + 1), np.int64)
    np.add.at(counts, (patients, classes), 1)
    of = deal(counts.argmax(1).astype(np.int64))
    return replace(
        of,
        site=of.site[patients],
        split=of.split[patients],
        visible=of.visible[patients],
        num_classes=int(classes.max()) + 1,
        labels_sha256=labels_digest(classes),
    )


def check_patients(patients: Numbers, manifest: Manifest) -> None:
    """Raise DataError where a manifest has a patient at two sites, or in two parts."""
    of_first = np.unique(patients, return_index=True)[1][patients]
    for name, held in (("sites", manifest.site), ("parts", manifest.split)):
        if (apart := held != held[of_first]).any():
            raise DataError(
                f"the manifest has input {int(apart.argmax())} and another one of the same patient "
                f"in two {name}: make the split again"
            )
