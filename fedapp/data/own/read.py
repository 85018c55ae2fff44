"""From a site's own files to its data; and the sites of one process, each with its own files."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedapp.core.errors import ConfigError, DataError, ImageError
from fedapp.core.formatting import counted
from fedapp.core.settings import DataSettings, SplitSettings
from fedapp.data.folder import decode_into
from fedapp.data.memory_map import allocate, gather_rows
from fedapp.data.own.entries import Fault, Kind, Listing, OwnDataError
from fedapp.data.own.listing import list_agreed
from fedapp.data.own.train_test_split import TEST, TRAIN, VAL, deal, group_of
from fedapp.data.sites import BAGS, LABELLED, UNLABELLED, Bags, Part, SiteData
from fedapp.data.split.groups import content_digest, numbers_of
from fedapp.data.window import DepthError

_PARTS = {
    LABELLED: (TRAIN, "label"),
    UNLABELLED: (TRAIN, ""),
    BAGS: (TRAIN, "bag"),
    VAL: (VAL, "label"),
    TEST: (TEST, "label"),
}
"""For each part of a site: the purpose its images were assigned to, and what is known of them."""


@dataclass(frozen=True)
class Place:
    """A site's name and the location of its data.

    patients: the site's own pattern for patients; empty: `data.patients` applies, which only a
        simulation has.
    """

    name: str
    data: Path
    patients: str = ""


class OwnSites:
    """Sites that read their own files, each when it is first needed."""

    def __init__(
        self,
        places: Mapping[int, Place],
        settings: DataSettings,
        split: SplitSettings,
        seed: int,
        device: torch.device,
    ) -> None:
        """Store the locations of the sites' data, by site number; nothing is read yet."""
        self._places = dict(places)
        self._settings, self._split, self._seed = settings, split, seed
        self._device = device
        self._sites: dict[int, SiteData] = {}

    def site(self, k: int) -> SiteData:
        """Return the data of site k on the device; the same object in every call.

        Raises OwnDataError where the data are not as agreed.
        """
        if k not in self._places:
            raise DataError(
                f"site {k}: not one of sites {sorted(self._places)}: correct its number"
            )
        if k not in self._sites:
            data = _read(self._places[k], k, self._settings, self._split, self._seed)
            self._sites[k] = data.to(self._device)
        return self._sites[k]


def simulated_places(root: Path, settings: DataSettings, count: int) -> dict[int, Place]:
    """Return where `count` sites on one machine find their data: in the folders of `root`.

    Site k has the k-th name in `data.sites` or, without that setting, the k-th folder by name.
    Raises ConfigError where the numbers of folders and sites differ, DataError where a named folder
    is missing.
    """
    try:
        folders = sorted(p.name for p in root.iterdir() if p.is_dir() and p.name[0] != ".")
    except OSError as error:
        raise DataError(
            f"{root}: cannot be listed ({error.strerror}): set data.root to the folder that holds "
            "one folder per site"
        ) from error
    names = settings.site_names or tuple(folders)
    if absent := [name for name in names if name not in folders]:
        raise DataError(
            f"{root}: no folder {absent[0]!r}, which data.sites names: put that site's data there"
        )
    if len(names) != count:
        raise ConfigError(
            f"{root}: holds folders for {counted(len(names), 'sites')}, split.num_clients = "
            f"{count}: make the two equal, or name in data.sites the folders to use"
        )
    return {k: Place(name, root / name) for k, name in enumerate(names)}


def _read(
    place: Place, site: int, settings: DataSettings, split: SplitSettings, seed: int
) -> SiteData:
    """Read a site's files according to the settings."""
    findings = settings.finding_names
    listing = list_agreed(place.data, settings, place.patients)
    if listing.faults:
        raise OwnDataError(place.name, listing.faults)
    entries, channels = listing.entries, settings.inputs[0]
    decoded = _decoded(place, listing, settings)
    dealt = deal(entries, split, seed, place.name, [content_digest(image) for image in decoded])
    rows: dict[tuple[str, str], list[int]] = {}
    for number, (entry, purpose) in enumerate(zip(entries, dealt, strict=True)):
        known = "label" if entry.label else "bag" if entry.bag else ""
        rows.setdefault((purpose, known), []).append(number)
    index = {name: number for number, name in enumerate(settings.class_names)}
    bags = {name: number for number, name in enumerate(sorted(listing.bags))}

    def part(purpose: str, known: str) -> Part:
        chosen = rows.get((purpose, known), [])
        images = gather_rows(decoded, chosen)
        if known == "label" and findings:
            shown = torch.tensor([entries[i].findings for i in chosen], dtype=torch.int64)
            return Part(images, shown.view(-1, len(findings)))
        if known == "label":
            return Part(images, _whole([index[entries[i].label] for i in chosen]))
        if known == "bag":
            told = torch.tensor([listing.bags[name] for name in bags], dtype=torch.float64)
            return Part(images, Bags(_whole([bags[entries[i].bag] for i in chosen]), told))
        return Part(images)

    parts = {name: part(*kind) for name, kind in _PARTS.items() if name != BAGS or kind in rows}
    groups = None
    if any(entry.group for entry in entries):
        groups = torch.from_numpy(numbers_of(map(group_of, entries)))
    return SiteData(
        site=site,
        parts=parts,
        num_classes=len(settings.names),
        mean=(settings.mean,) * channels,
        std=(settings.std,) * channels,
        audit=None,
        name=place.name,
        patients={}
        if groups is None
        else {name: groups[rows.get(_PARTS[name], [])] for name in parts},
    )


def _decoded(place: Place, listing: Listing, settings: DataSettings) -> Tensor:
    """Return the input of every entry, [n, ...]. Raises OwnDataError."""
    if listing.values is not None:
        return listing.values
    images = allocate((len(listing.entries), *settings.inputs))
    try:
        decode_into([entry.path for entry in listing.entries], images, settings.window)
    except ImageError as error:
        raise OwnDataError(place.name, [_damage(place, error)]) from error
    return images


def _whole(numbers: list[int]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def _damage(place: Place, error: ImageError) -> Fault:
    """Return the fault for an error of `decode`."""
    kind = Kind.DEPTH if isinstance(error, DepthError) else Kind.FILE
    where = str(error.file).removeprefix(f"{place.data}/")
    return Fault(kind, where, error.what, error.remedy)
