"""Inputs to answer for: images of a folder, or that a CSV file names, or a file's vectors."""

import csv
import os
from pathlib import Path
from typing import NamedTuple

from fedapp.data.folder import KINDS, composed, is_image, passed_over
from fedapp.data.own.folders import LABELLED
from fedapp.data.own.vectors import READERS, read_rows, vectors_file
from fedapp.ground.errors import DataError, one_line
from fedapp.ground.names import FORMULA

COLUMN, LABEL = "path", "label"


class Listed(NamedTuple):
    """An image: its name as written in the answers, its file, its label; empty: none is known.

    row: of a vector, its place in the file, by ids; then the name is its id. None: an image.
    """

    name: str
    path: Path
    label: str = ""
    row: int | None = None


def list_images(source: Path) -> list[Listed]:
    """Return every image, at least one.

    source: a folder, whose images are found in folders below it too, hidden ones apart, sorted by
    name, "./" in front of what a spreadsheet would take for a formula, those in `labelled/<class>`
    with that label, as in a site's own data; or a CSV file with a column `path`, in its order, each
    as seen from the file's folder, and perhaps a column `label`; or a file of vectors as a site's
    own, or a folder with one. Raises DataError where there is no such thing, no image, or a name
    that is not UTF-8.
    """
    if vectors := vectors_file(source):
        rows = read_rows(vectors)
        return [Listed(name, vectors, rows.text(LABEL, i), i) for i, name in enumerate(rows.ids)]
    if source.suffix.lower() == ".csv" and source.is_file():
        found = _of_table(source)
    elif source.is_dir():
        found = _of_folder(source)
    elif source.is_file():
        raise DataError(
            f"{source}: no folder, no CSV file (.csv) and no vectors ({', '.join(READERS)}): name "
            "the folder it lies in"
        )
    else:
        raise DataError(f"{source}: no such folder or CSV file: name one that holds images")
    if not found:
        raise DataError(
            f"{source}: no images: name a folder of images as {KINDS}, or a CSV "
            f"file with their paths in a column {COLUMN}"
        )
    return found


def _of_folder(folder: Path) -> list[Listed]:
    names = []
    for place, inner, files in os.walk(folder, onerror=_refused):
        inner[:] = [name for name in inner if not passed_over(name)]
        names += [
            (Path(place) / name).relative_to(folder).as_posix()
            for name in files
            if not passed_over(name) and is_image(Path(place) / name)
        ]
    return [
        Listed(_written(name, folder), folder / name, _class_of(name)) for name in sorted(names)
    ]


def _written(name: str, folder: Path) -> str:
    """Return a file's name as answers have it. Raises DataError where it cannot be written."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise DataError(f"{folder}: {name!a}: a name that is not UTF-8: rename it") from None
    return f"./{name}" if name.startswith(FORMULA) else name


def _class_of(name: str) -> str:
    """Return the class that an image's folder says; empty: none."""
    parts = name.split("/")
    return composed(parts[1]) if len(parts) == 3 and parts[0] == LABELLED else ""


def _of_table(table: Path) -> list[Listed]:
    try:
        lines = table.read_bytes().decode("utf-8-sig").splitlines()
        rows = csv.DictReader(lines, strict=True)
        header = [name.strip().lower() for name in rows.fieldnames or ()]
        if COLUMN not in header:
            raise DataError(f"{table}: no column {COLUMN!r} in its first line: name it")
        rows.fieldnames = header
        named = [[(row.get(name) or "").strip() for name in (COLUMN, LABEL)] for row in rows]
    except OSError as error:
        raise DataError(f"{table}: cannot be read ({error.strerror}): make it so") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{table}: not CSV in UTF-8 ({error}): save it as such") from error
    found = [Listed(path, table.parent / path, label) for path, label in named if path]
    for image in found:
        if not os.path.isfile(image.path):  # not Path's, which raises at a name that is too long
            text = f"{table}: {image.name}: no such file: correct the path or remove the line"
            raise DataError(one_line(text))
    return found


def _refused(error: OSError) -> None:
    raise DataError(f"{error.filename}: cannot be listed ({error.strerror}): make it so") from error
