"""Inputs that are dealt together: those of one patient, and exact copies of one another.

A model that is tested on a patient, or on a copy of an image, that it has learned from looks better
than it is. So groups are dealt, not inputs; where a split was made elsewhere, copies in its test
part are counted. Copies are inputs that are equal in every number, which a file's digest would
often miss.
"""

import hashlib
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from fedapp.core.errors import DataError
from fedapp.core.settings import SplitSettings
from fedapp.data.inputs import UNKNOWN
from fedapp.data.sites import SiteData
from fedapp.data.split.manifest import Manifest, labels_digest

Numbers = NDArray[np.int64]


def patient_numbers(patients: Sequence[Any], count: int) -> Numbers:
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


def patients_of_paths(paths: Sequence[str], pattern: str) -> Numbers:
    """Return a patient's number for each image, [N], taken from the image's path.

    paths: relative to the folder of the data. pattern: `data.patients`, as in `patient_in`. Raises
    DataError, naming the first path that does not match, and where `patient_numbers` does.
    """
    names = [patient_in(path, pattern) for path in paths]
    if not all(names):
        raise DataError(
            f"{paths[names.index('')]}: its path does not match data.patients = {pattern!r}, so "
            "nobody knows whose it is: rename the file as the others are, or correct the pattern"
        )
    return patient_numbers(names, len(paths))


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


def content_digest(inputs: Tensor) -> str:
    """Return the SHA-256, in hex, of one input on the CPU, of its shape, and of nothing else."""
    total = hashlib.sha256(repr(tuple(inputs.shape)).encode())
    total.update(inputs.contiguous().numpy().data)
    return total.hexdigest()


def equal_inputs(inputs: Tensor) -> Numbers | None:
    """Return which inputs are equal, as numbers int64 [N] from 0; None where all differ.

    inputs: [N, ...], on the CPU.
    """
    found = numbers_of(map(content_digest, inputs))
    return found if len(np.unique(found)) < len(found) else None


def numbers_of(things: Iterable[Hashable]) -> Numbers:
    """Return numbers int64 [N] from 0, in order of appearance; equal things have the same one."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(one, len(numbers)) for one in things], np.int64)


def joined_groups(one: Numbers, other: Numbers) -> Numbers:
    """Return what is to be dealt together by two groupings, int64 [N] from 0, of the same inputs.

    Inputs are tied that share a group in either, and so are those tied to the same third one.
    """
    first = int(one.max()) + 1
    links = coo_array(
        (np.ones(len(one)), (one, first + other)), shape=(first + int(other.max()) + 1,) * 2
    )
    groups = connected_components(links, directed=False)[1][one]
    return np.unique(groups, return_inverse=True)[1].astype(np.int64)


def test_copies(sites: Iterable[SiteData]) -> tuple[int, int]:
    """Return how many test inputs of the sites equal one that a site learns from, and of how many.

    The site need not be the same: what one has learned reaches the others.
    """
    known: set[str] = set()
    tested: list[str] = []
    for data in sites:
        for part in data.training:
            known.update(map(content_digest, part.cpu()))
        tested += map(content_digest, data.test.cpu())
    return sum(content in known for content in tested), len(tested)


def describe_copies(found: int, of: int, images: bool) -> str:
    """Say how many test inputs are learned from too; empty: none is.

    Two rows of a table may well have the same numbers; two images that are equal are one image.
    """
    if not found:
        return ""
    if images:
        return (
            f"{found} of {of} test images are exact copies of images that are learned from: what "
            "is measured on them is too good"
        )
    return f"{found} of {of} test inputs have the same numbers as one that is learned from"
