"""Images to answer for: those of a folder, or those that a CSV file names."""

import csv
import os
from pathlib import Path

from fedapp.data.folder import KINDS, SUFFIXES
from fedapp.ground.errors import DataError

COLUMN = "path"


def list_images(source: Path) -> list[tuple[str, Path]]:
    """Return every image's name, as written in the answers, and its path; at least one.

    source: a folder, whose images are found in folders below it too, hidden ones apart, sorted by
    name; or a CSV file with a column `path`, in its order, each as seen from the file's folder.
    Raises DataError where there is no such thing, or no image.
    """
    if source.suffix.lower() == ".csv" and source.is_file():
        found = _of_table(source)
    elif source.is_dir():
        found = _of_folder(source)
    else:
        raise DataError(f"{source}: no such folder or CSV file: name one that holds images")
    if not found:
        raise DataError(
            f"{source}: no images: name a folder of images as {KINDS}, or a CSV "
            f"file with their paths in a column {COLUMN}"
        )
    return found


def _of_folder(folder: Path) -> list[tuple[str, Path]]:
    names = []
    for place, inner, files in os.walk(folder, onerror=_refused):
        inner[:] = [name for name in inner if not name.startswith(".")]
        names += [
            (Path(place) / name).relative_to(folder).as_posix()
            for name in files
            if not name.startswith(".") and name.lower().endswith(SUFFIXES)
        ]
    return [(name, folder / name) for name in sorted(names)]


def _of_table(table: Path) -> list[tuple[str, Path]]:
    try:
        lines = table.read_bytes().decode("utf-8-sig").splitlines()
        rows = csv.DictReader(lines, strict=True)
        header = [name.strip().lower() for name in rows.fieldnames or ()]
        if COLUMN not in header:
            raise DataError(f"{table}: no column {COLUMN!r} in its first line: name it")
        rows.fieldnames = header
        paths = [(row[COLUMN] or "").strip() for row in rows]
    except OSError as error:
        raise DataError(f"{table}: cannot be read ({error.strerror}): make it so") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{table}: not CSV in UTF-8 ({error}): save it as such") from error
    found = [(path, table.parent / path) for path in paths if path]
    for path, file in found:
        if not file.is_file():
            raise DataError(f"{table}: {path}: no such file: correct the path or remove the line")
    return found


def _refused(error: OSError) -> None:
    raise DataError(f"{error.filename}: cannot be listed ({error.strerror}): make it so") from error
