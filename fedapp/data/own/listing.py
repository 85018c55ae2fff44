"""The inputs and labels of a site before any image is opened, and everything wrong with them.

The data are a folder with `labelled/<class>/*.png` and `unlabelled/*.png`, or a folder with a
`labels.csv`, or this CSV file. Images are files with the endings `data.folder.SUFFIXES`. Or the
data are a file of vectors, or a folder that contains one.
"""

import difflib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedapp.core.settings import DataSettings
from fedapp.data.folder import FORMATS, is_ignored, is_image, nfc
from fedapp.data.own.entries import (
    IMAGE,
    PATIENT,
    Entry,
    Fault,
    Kind,
    Listing,
    label_fault,
    leads_outside,
    outside_fault,
    with_patients_of_paths,
)
from fedapp.data.own.table import list_table
from fedapp.data.own.vectors import NAMES, list_vectors, vectors_file

TABLE = "labels.csv"
LABELLED, UNLABELLED = "labelled", "unlabelled"
"""Subfolders of a site's data. The first one has a folder for each class."""


def list_agreed(data: Path, settings: DataSettings, patients: str = "") -> Listing:
    """List a site's data, as `list_own` does, by the settings that all sites agreed on.

    patients: the site's own pattern; empty: that of the settings.
    """
    vectors = (settings.vector_size, settings.encoder)
    names = settings.finding_names
    return list_own(data, settings.class_names, patients or settings.patients, vectors, names)


def list_own(
    data: Path,
    classes: Sequence[str],
    patients: str = "",
    vectors: tuple[int, str] | None = None,
    findings: Sequence[str] = (),
) -> Listing:
    """List a site's data, sorted by name. Every fault is in the result; nothing is raised.

    classes: the accepted labels; empty: any.
    patients: as `data.patients`.
    vectors: `data.vector_size`, 0 where images were agreed on, and `data.encoder`; None: nothing
        was agreed on.
    findings: the agreed findings, each of which is a column, in place of classes.
    """
    table = data if data.suffix.lower() == ".csv" else data / TABLE
    if not os.path.exists(data):  # also False if access is denied
        what = "no such folder or CSV file, or this user may not read it"
        remedy = "check the path (data-path of the node) and who may read it"
        return _only(Fault(Kind.LAYOUT, str(data), what, remedy))
    if file := vectors_file(data):
        if patients:
            what = "vectors, and `patients` in site.yaml, a pattern for the paths of images"
            remedy = f"take it out there; write the column {PATIENT!r} into {file.name}"
            return _only(Fault(Kind.PATIENT, file.name, what, remedy))
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
        return _only(Fault(Kind.LAYOUT, str(data), what, f"put them there, as {FORMATS}"))
    entries = tuple(sorted(listing.entries, key=lambda entry: entry.name))
    return with_patients_of_paths(replace(listing, entries=entries), patients)


def _vectors(
    data: Path,
    file: Path,
    table: Path,
    classes: Sequence[str],
    agreed: tuple[int, str] | None,
) -> Listing:
    """List a file of vectors, if vectors were agreed on and no other data lie beside it."""
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


def list_folders(data: Path, classes: Sequence[str]) -> Listing:
    """List the images in a folder. The label is the name of the folder that contains them."""
    walk = _Walk(data)
    for folder in walk.folders(data, keep=(LABELLED, UNLABELLED)):
        if folder.name == UNLABELLED:
            walk.images(folder, "")
            continue
        for inner in walk.folders(folder):
            label = nfc(inner.name)
            if classes and label not in classes:
                walk.faults.append(label_fault(f"{LABELLED}/{label}", label, classes))
            else:
                walk.images(inner, label)
    return Listing(tuple(walk.entries), tuple(walk.faults), tuple(walk.passed_over))


class _Walk:
    """Collects entries and faults while it walks through the folders."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._root = data.resolve()
        self.entries: list[Entry] = []
        self.faults: list[Fault] = []
        self.passed_over: list[str] = []

    def folders(self, folder: Path, keep: Sequence[str] = ()) -> list[Path]:
        """Return the folders in a folder; files there are ignored.

        keep: the only names allowed; empty: any.
        """
        found = []
        for path in self._inside(folder):
            if not os.path.isdir(path):
                self.passed_over.append(self._name(path))
            elif keep and path.name not in keep:
                near = difflib.get_close_matches(path.name, keep, 1)
                remedy = f"did you mean {near[0]!r}?" if near else "move it elsewhere"
                if any(os.path.isdir(path / name) for name in keep):
                    remedy = "it is laid out as a site's own data: name that folder instead"
                elif not near and any(map(is_image, self._inside(path))):
                    remedy = f"if it is a class, move it to {LABELLED}/{path.name}/"
                what = f"only {' and '.join(keep)} are read here"
                self.faults.append(Fault(Kind.LAYOUT, f"{path.name}/", what, remedy))
            else:
                found.append(path)
        return found

    def images(self, folder: Path, label: str) -> None:
        """Add the images in a folder. Other files are ignored; folders inside are a fault."""
        for path in self._inside(folder):
            name = self._name(path)
            if os.path.isdir(path):
                what = "a folder inside, which is not read"
                remedy = "move its images up, or write a labels.csv with a column group"
                self.faults.append(Fault(Kind.LAYOUT, f"{name}/", what, remedy))
            elif not is_image(path):
                self.passed_over.append(name)
            elif not os.path.isfile(path):
                self.faults.append(Fault(Kind.FILE, name, "no file", f"put there {IMAGE}"))
            else:
                self.entries.append(Entry(path, nfc(name), label))

    def _inside(self, folder: Path) -> list[Path]:
        """Return the contents of a folder, by name, except what is ignored or leads elsewhere."""
        try:
            found = sorted(path for path in folder.iterdir() if not is_ignored(path.name))
        except OSError as error:
            what = f"cannot be listed ({error.strerror})"
            remedy = "let the user who runs the node read it"
            self.faults.append(Fault(Kind.LAYOUT, self._name(folder), what, remedy))
            return []
        strayed = {path for path in found if path.is_symlink() and leads_outside(path, self._root)}
        self.faults += [outside_fault(self._name(path)) for path in sorted(strayed)]
        return [path for path in found if path not in strayed]

    def _name(self, path: Path) -> str:
        return path.relative_to(self._data).as_posix() if path != self._data else str(path)
