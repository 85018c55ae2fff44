"""A site's images and labels before any image is opened, and all that is wrong with them.

DATA is a folder with `labelled/<class>/*.png` and `unlabelled/*.png`, or one with a `labels.csv`,
or that CSV file itself. Images are files of `data.folder.SUFFIXES`.
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

TABLE = "labels.csv"


def list_own(data: Path, classes: Sequence[str], patients: str = "") -> Listing:
    """List a site's data; entries ascend by name. Every fault is in the result, nothing is raised.

    classes: what labels may be; empty: whatever there is. patients: as `data.patients`.
    """
    table = data if data.suffix.lower() == ".csv" else data / TABLE
    if not os.path.exists(data):  # False too where it may not be looked at
        what = "no such folder or CSV file, or not to be read by this user"
        remedy = "check the path (data-path of the node) and who may read it"
        return _only(Fault(Kind.LAYOUT, str(data), what, remedy))
    if os.path.isfile(table):
        if table.parent == data and os.path.exists(data / LABELLED):
            what = f"holds both {TABLE} and {LABELLED}/"
            return _only(Fault(Kind.LAYOUT, str(data), what, "keep one, or name the CSV file"))
        listing = list_table(table, classes)
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


def _only(fault: Fault) -> Listing:
    return Listing((), (fault,))
