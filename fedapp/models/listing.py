"""The inputs of `fedapp predict`: images of a folder or of a CSV file, or vectors of a file."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedapp.core.errors import DataError, one_line
from fedapp.core.names import FORMULA_STARTS
from fedapp.data.folder import FORMATS, is_ignored, is_image, nfc
from fedapp.data.own.entries import Fault, Kind
from fedapp.data.own.listing import LABELLED
from fedapp.data.own.table import csv_rows
from fedapp.data.own.vectors import READERS, read_rows, vectors_file

PATH_COLUMN, LABEL_COLUMN = "path", "label"


class ListedInput(NamedTuple):
    """One input.

    name: as it is written in the answers; of a vector, its id. path: its file. label: empty where
    none is known. row: the place of a vector in its file, sorted by ids; None: it is an image.
    """

    name: str
    path: Path
    label: str = ""
    row: int | None = None


def list_several(sources: Sequence[Path]) -> list[ListedInput]:
    """Return the inputs of all sources, in the order of the sources.

    Each source is one that `list_images` takes. If there are several, the names begin with the
    source as it is written, so that they differ. Raises DataError as `list_images` does, and where
    one of several sources is a file of vectors.
    """
    if len(sources) == 1:
        return list_images(sources[0])
    if vectors := [source for source in sources if vectors_file(source)]:
        raise DataError(f"{vectors[0]}: a file of vectors is asked about alone: name no other")
    return [
        one
        if source.is_file() and is_image(source)
        else one._replace(name=_written(f"{source}/{one.name}", source))
        for source in sources
        for one in list_images(source)
    ]


def list_images(source: Path) -> list[ListedInput]:
    """Return the inputs of a source, one or more.

    The source is one of these:

    - an image file, named as it is written here
    - a folder: all images in it and below, sorted by name, without hidden ones. Images in
      `labelled/<class>` have that label, as in a site's own data. A name that a spreadsheet would
      take for a formula begins with "./"
    - a CSV file with a column `path`, relative to the file's folder, and perhaps a column `label`;
      in the order of its rows
    - a file of vectors like a site's own, or a folder with one

    Raises DataError where there is no such source, no image, or a name that is not UTF-8.
    """
    if vectors := vectors_file(source):
        read = read_rows(vectors)
        return [
            ListedInput(name, vectors, read.text(LABEL_COLUMN, i), i)
            for i, name in enumerate(read.ids)
        ]
    if source.suffix.lower() == ".csv" and source.is_file():
        found = _of_table(source)
    elif source.is_dir():
        found = _of_folder(source)
    elif source.is_file() and is_image(source):
        found = [ListedInput(_written(str(source), source.parent), source)]
    elif source.is_file():
        raise DataError(
            f"{source}: no image ({FORMATS}), no folder, no CSV file (.csv) and no vectors "
            f"({', '.join(READERS)}): name one of these"
        )
    else:
        raise DataError(f"{source}: no such file or folder: name images, or what holds them")
    if not found:
        raise DataError(
            f"{source}: no images: name a folder of images as {FORMATS}, or a CSV "
            f"file with their paths in a column {PATH_COLUMN}"
        )
    return found


def _of_folder(folder: Path) -> list[ListedInput]:
    names = []
    for place, inner, files in os.walk(folder, onerror=_refused):
        inner[:] = [name for name in inner if not is_ignored(name)]
        names += [
            (Path(place) / name).relative_to(folder).as_posix()
            for name in files
            if not is_ignored(name) and is_image(Path(place) / name)
        ]
    return [
        ListedInput(_written(name, folder), folder / name, _class_of(name))
        for name in sorted(names)
    ]


def _written(name: str, folder: Path) -> str:
    """Return a file's name as it is written in the answers. Raises DataError: it is not UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise DataError(f"{folder}: {name!a}: a name that is not UTF-8: rename it") from None
    return f"./{name}" if name.startswith(FORMULA_STARTS) else name


def _class_of(name: str) -> str:
    """Return the class of an image in `labelled/<class>`; empty: it lies elsewhere."""
    parts = name.split("/")
    return nfc(parts[1]) if len(parts) == 3 and parts[0] == LABELLED else ""


def _of_table(table: Path) -> list[ListedInput]:
    """Return the images that a CSV file names, with the reader of a site's own tables.

    Whether the image files exist is not checked here: a missing one is later answered as an image
    that cannot be used, beside the answers to the others.
    """
    faults: list[Fault] = []
    found = [
        ListedInput(row[PATH_COLUMN], table.parent / row[PATH_COLUMN], row.get(LABEL_COLUMN, ""))
        for _, row in csv_rows(table, _columns, faults, f"{PATH_COLUMN},{LABEL_COLUMN}")
        if row[PATH_COLUMN]
    ]
    if faults:
        raise DataError(one_line(table.parent / str(faults[0])))
    if odd := next((one.name for one in found if not one.name.isprintable()), ""):
        raise DataError(f"{table}: {odd!a}: a path with control characters: rename the file")
    return found


def _columns(where: str, fields: Sequence[str]) -> Sequence[str] | Fault:
    """Return the columns that the first line names, or the fault that it has no `path`."""
    header = [field.lower() for field in fields]
    if PATH_COLUMN not in header:
        what = f"no column {PATH_COLUMN!r} in its first line"
        return Fault(Kind.LAYOUT, where, what, "give that name to the column of the images' paths")
    return header


def _refused(error: OSError) -> None:
    raise DataError(f"{error.filename}: cannot be listed ({error.strerror}): fix that") from error
