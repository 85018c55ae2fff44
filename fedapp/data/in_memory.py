"""Data that a program has handed to this process: `data.name = memory:sha256_<digest>`.

The name is derived from the content. So the settings of a run identify its data, and a run cannot
be resumed with other data under the same name. Another process must be given the same data again.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

import torch

from fedapp.core.errors import DataError
from fedapp.core.names import check_class_names
from fedapp.core.settings import MEMORY
from fedapp.data.inputs import DataSet
from fedapp.data.sites import SiteData

_NAME = re.compile(MEMORY + "sha256_[0-9a-f]{64}")


@dataclass(frozen=True, eq=False)
class GivenSites:
    """Sites that each bring data of their own.

    sites: one or more, numbered by their position, with one shape of inputs.
    classes: the names of the classes, or of findings, which are the same at all sites.
    are_images: whether the inputs are images.
    """

    sites: tuple[SiteData, ...]
    classes: tuple[str, ...]
    are_images: bool

    def __post_init__(self) -> None:
        check_class_names(self.classes)

    def site(self, k: int) -> SiteData:
        """Return the data of site k, in [0, K)."""
        return self.sites[k]

    def to(self, device: torch.device) -> "GivenSites":
        """Return the same sites with their data on `device`."""
        there = tuple(site.to(device) for site in self.sites)
        return GivenSites(there, self.classes, self.are_images)

    @property
    def digest(self) -> str:
        """SHA-256, in hex, of the data, names and classes of all sites, in their order."""
        return _sha256([repr((site.name, site.digest)).encode() for site in self.sites], self)


Given = DataSet | GivenSites
"""What a program can hand over: a pool to be split, or the data of every site."""

# Weak references: data that the program no longer uses are freed.
_REGISTERED: WeakValueDictionary[str, Given] = WeakValueDictionary()


def register(data: Given) -> tuple[str, Given]:
    """Return the `data.name` of data, and the object that is found under that name.

    The object lives only as long as the caller keeps it. It is an equal object if one was
    registered before.
    """
    name = f"memory:sha256_{digest_of(data)}"
    return name, _REGISTERED.setdefault(name, data)


def in_memory(name: str) -> bool:
    """Whether a `data.name` is that of data in memory."""
    return _NAME.fullmatch(name) is not None


def registered(name: str) -> Given:
    """Return the data with this name. Raises DataError where this process was not given them."""
    found = _REGISTERED.get(name)
    if found is None:
        raise DataError(
            f"data.name = {name!r}: the run's data were given in memory: give the same data again, "
            "from Python (docs/PYTHON.md)"
        )
    return found


def digest_of(data: Given) -> str:
    """Return the SHA-256, in hex, of the content: inputs, labels, patients and classes."""
    if isinstance(data, GivenSites):
        return data.digest
    pool = [data.inputs, data.labels, *([] if data.patients is None else [data.patients])]
    parts = [repr((part.dtype, tuple(part.shape))).encode() for part in pool]
    return _sha256([*parts, *(part.contiguous().numpy().data for part in pool)], data)


def _sha256(parts: Sequence[bytes | memoryview], data: Given) -> str:
    total = hashlib.sha256(repr((data.are_images, data.classes)).encode())
    for part in parts:
        total.update(part)
    return total.hexdigest()
