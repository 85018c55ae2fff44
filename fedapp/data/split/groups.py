"""Inputs that must stay together in a split: those of one patient, and exact copies.

A model that is tested on a patient, or on a copy of an image, from which it has learned looks
better than it is. So whole groups are distributed, not single inputs. Where a split was made
elsewhere, copies in its test part are counted. Copies are inputs that are equal in every number;
the digest of a file would often miss them.
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
    """Return the number of each input's patient, [count]. Raises DataError.

    patients: a name or number for each input; None, NaN and the empty text mean that it is missing.
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
    """Return the patient that an image's path names; empty if it names none.

    pattern: `data.patients`, a regular expression with one group.
    """
    found = re.search(pattern, path)
    return (found[1] or "") if found else ""


def patients_of_paths(paths: Sequence[str], pattern: str) -> Numbers:
    """Return a patient's number for each image, [N], taken from the image's path.

    paths: relative to the folder of the data. pattern: `data.patients`, as in `patient_in`.
    Raises DataError, naming the first path that does not match, and where `patient_numbers` does.
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
    """Return a manifest in which all inputs of a patient have the same site, part and visibility.

    classes: [N], all known.
    patients: [N], from 0.
    deal: splits patients as if each were one input of the patient's most frequent class (the first
        of several).
    Raises DataError where the settings require that single inputs are distributed.
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
    """Raise DataError where a manifest has a patient at two sites or in two parts."""
    of_first = np.unique(patients, return_index=True)[1][patients]
    for name, held in (("sites", manifest.site), ("parts", manifest.split)):
        if (apart := held != held[of_first]).any():
            raise DataError(
                f"the manifest has input {int(apart.argmax())} and another one of the same patient "
                f"in two {name}: make the split again"
            )


def content_digest(inputs: Tensor) -> str:
    """Return the SHA-256, in hex, of the content and the shape of one input on the CPU."""
    total = hashlib.sha256(repr(tuple(inputs.shape)).encode())
    total.update(inputs.contiguous().numpy().data)
    return total.hexdigest()


def equal_inputs(inputs: Tensor) -> Numbers | None:
    """Return group numbers of equal inputs, int64 [N] from 0; None if all inputs differ.

    inputs: [N, ...], on the CPU.
    """
    found = numbers_of(map(content_digest, inputs))
    return found if len(np.unique(found)) < len(found) else None


def numbers_of(things: Iterable[Hashable]) -> Numbers:
    """Return numbers int64 [N] from 0, in order of appearance; equal things have equal numbers."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(one, len(numbers)) for one in things], np.int64)


def joined_groups(one: Numbers, other: Numbers) -> Numbers:
    """Return the groups, int64 [N] from 0, that result from joining two groupings of N inputs.

    Inputs that share a group in either grouping are joined, and so are inputs that are joined to
    the same third one.
    """
    first = int(one.max()) + 1
    links = coo_array(
        (np.ones(len(one)), (one, first + other)), shape=(first + int(other.max()) + 1,) * 2
    )
    groups = connected_components(links, directed=False)[1][one]
    return np.unique(groups, return_inverse=True)[1].astype(np.int64)


def count_test_copies(sites: Iterable[SiteData]) -> tuple[int, int]:
    """Return how many test inputs of the sites equal a training input of any site, and of how many.

    The training input may be at another site, because the federation shares what a site has
    learned.
    """
    known: set[str] = set()
    tested: list[str] = []
    for data in sites:
        for part in data.training:
            known.update(map(content_digest, part.cpu()))
        tested += map(content_digest, data.test.cpu())
    return sum(content in known for content in tested), len(tested)


def describe_copies(found: int, of: int, images: bool) -> str:
    """Describe how many test inputs are training inputs, too; empty if none is.

    Two rows of a table may have the same numbers by chance; two equal images are the same image.
    """
    if not found:
        return ""
    if images:
        return (
            f"{found} of {of} test images are exact copies of images that are learned from: what "
            "is measured on them is too good"
        )
    return f"{found} of {of} test inputs have the same numbers as one that is learned from"
