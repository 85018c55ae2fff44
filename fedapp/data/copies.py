"""Exact copies: inputs that are equal in every number, which a file's digest would often miss.

A model that is tested on a copy of what it has learned from looks better than it is. So copies are
dealt together, as a patient's inputs are; where a split was made elsewhere, they are counted.
"""

import hashlib
from collections.abc import Hashable, Iterable

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from fedapp.data.bypatient import Numbers
from fedapp.data.sites import SiteData


def content_of(inputs: Tensor) -> str:
    """Return the SHA-256, in hex, of one input on the CPU, of its shape, and of nothing else."""
    total = hashlib.sha256(repr(tuple(inputs.shape)).encode())
    total.update(inputs.contiguous().numpy().data)
    return total.hexdigest()


def alike(inputs: Tensor) -> Numbers | None:
    """Return which inputs are equal, as numbers int64 [N] from 0; None where all differ.

    inputs: [N, ...], on the CPU.
    """
    found = numbers_of(map(content_of, inputs))
    return found if len(np.unique(found)) < len(found) else None


def numbers_of(things: Iterable[Hashable]) -> Numbers:
    """Return numbers int64 [N] from 0, in order of appearance; equal things have the same one."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(one, len(numbers)) for one in things], np.int64)


def tied(one: Numbers, other: Numbers) -> Numbers:
    """Return what is to be dealt together by two groupings, int64 [N] from 0, of the same inputs.

    Inputs are tied that share a group in either, and so are those tied to the same third one.
    """
    first = int(one.max()) + 1
    links = coo_array(
        (np.ones(len(one)), (one, first + other)), shape=(first + int(other.max()) + 1,) * 2
    )
    groups = connected_components(links, directed=False)[1][one]
    return np.unique(groups, return_inverse=True)[1].astype(np.int64)


def learned_from(sites: Iterable[SiteData]) -> tuple[int, int]:
    """Return how many test inputs of the sites equal one that a site learns from, and of how many.

    The site need not be the same: what one has learned reaches the others.
    """
    known: set[str] = set()
    tested: list[str] = []
    for data in sites:
        for part in data.training:
            known.update(map(content_of, part.cpu()))
        tested += map(content_of, data.test.cpu())
    return sum(content in known for content in tested), len(tested)


def in_words(found: int, of: int, images: bool) -> str:
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
