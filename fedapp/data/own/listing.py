"""A site's inputs and labels before any image is opened, and all that is wrong with them.

DATA is a folder with `labelled/<class>/*.png` and `unlabelled/*.png`, or one with a `labels.csv`,
or that CSV file itself. Images are files of `data.folder.SUFFIXES`. Or a file of vectors, or a
folder with one.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedapp.data.folder import KINDS
from fedapp.data.own.entries import Listing
from fedapp.data.own.faults import Fault, Kind
from fedapp.data.own.folders import LABELLED, UNLABELLED, list_folders
from fedapp.data.own.patients import by_path
from fedapp.data.own.table import list_table
from fedapp.data.own.vectors import NAMES, list_vectors, vectors_file
from fedapp.ground.settings import DataSettings

TABLE = "labels.csv"


def list_agreed(data: Path, settings: DataSettings) -> Listing:
    """List a site's data as `list_own` does, as all sites agreed upon."""
    vectors = (settings.vector_size, settings.encoder)
    names = settings.finding_names
    return list_own(data, settings.class_names, settings.patients, vectors, names)


def list_own(
    data: Path,
    classes: Sequence[str],
    patients: str = "",
    vectors: tuple[int, str] | None = None,
    findings: Sequence[str] = (),
) -> Listing:
    """List a site's data; entries ascend by name. Every fault is in the result, nothing is raised.

    classes: what labels may be; empty: whatever there is. patients: as `data.patients`. vectors:
    `data.vector_size`, 0 where images are agreed upon, and `data.encoder`; None: nothing is.
    findings: the agreed ones, each of which is a column, in the place of classes.
    """
    table = data if data.suffix.lower() == ".csv" else data / TABLE
    if not os.path.exists(data):  # False too where it may not be looked at
        what = "no such folder or CSV file, or this user may not read it"
        remedy = "check the path (data-path of the node) and who may read it"
        return _only(Fault(Kind.LAYOUT, str(data), what, remedy))
    if file := vectors_file(data):
        return _vectors(data, file, table, classes, vectors)
    if vectors and vectors[0]:
        what, remedy = f"no {' and no '.join(NAMES)}", "data.vector_size asks for one: write it"
        return _only(Fault(Kind.VECTORS, str(data), what, remedy))
    if os.path.isfile(table):
        if table.parent == data and os.path.exists(data / LABELLED):
            what = f"holds both {TABLE} and {LABELLED}/"
            return _only(Fault(Kind.LAYOUT, str(data), what, "keep one, or name the CSV file"))
        listing = list_table(table, classes, findings)
    elif findings:
        what, remedy = f"no {TABLE}", f"write one: path,{','.join(findings)}, and 1, 0 or nothing"
        return _only(Fault(Kind.FINDING, str(data), what, remedy))
    elif os.path.isdir(data):
        listing = list_folders(data, classes)
    else:
        what, remedy = "neither a folder nor a CSV file", "name one of the two"
        return _only(Fault(Kind.LAYOUT, str(data), what, remedy))
    if not listing.entries and not listing.faults:
        what = f"no images, that is no {LABELLED}/<class>/*.png, {UNLABELLED}/*.png or {TABLE}"
        return _only(Fault(Kind.LAYOUT, str(data), what, f"put them there, as {KINDS}"))
    entries = tuple(sorted(listing.entries, key=lambda entry: entry.name))
    return by_path(replace(listing, entries=entries), patients)


def _vectors(
    data: Path,
    file: Path,
    table: Path,
    classes: Sequence[str],
    agreed: tuple[int, str] | None,
) -> Listing:
    """List a file of vectors where these are agreed upon, and nothing else lies beside it."""
    if agreed and not agreed[0]:
        remedy = "remove it, or have data.vector_size and data.encoder agreed upon"
        return _only(Fault(Kind.VECTORS, file.name, "vectors, but images are agreed upon", remedy))
    others = [table, data / LABELLED, data / UNLABELLED, *(data / name for name in NAMES)]
    if data != file and (beside := [p.name for p in others if p != file and os.path.exists(p)]):
        what = f"holds both {file.name} and {beside[0]}"
        return _only(Fault(Kind.LAYOUT, str(data), what, f"keep one, or name {file.name}"))
    return list_vectors(file, classes, *(agreed or ()))


def _only(fault: Fault) -> Listing:
    return Listing((), (fault,))
