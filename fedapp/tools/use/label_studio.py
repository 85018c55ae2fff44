"""Label Studio's files: tasks with the model's answer as pre-annotation, and labels read back."""

import csv
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from fedapp.data.own.listing import list_own
from fedapp.data.own.patients import GROUP, PATIENT
from fedapp.data.own.table import COLUMNS
from fedapp.ground.errors import DataError
from fedapp.ground.foreign import json_file
from fedapp.models.predict import Prediction

SERVED = "/data/local-files/?d="
"""Where Label Studio serves files of its own machine."""
NAME = "class"
"""Of the choice in Label Studio's labelling interface."""
FILE = "file"
"""Field of a task that holds the image's path on this machine."""
_ALWAYS = ("path", "label")
"""Columns that a site's table must have."""


def served(image: Path, root: Path) -> str:
    """Return where Label Studio serves an image. root: the folder that it serves.

    Raises DataError where the image is not below it. Links are not followed: it sees them as well.
    """
    try:
        below = Path(os.path.abspath(image)).relative_to(os.path.abspath(root))
    except ValueError as error:
        raise DataError(
            f"{image}: not below {root}, which Label Studio is to serve: put the CSV file into a "
            "folder that holds all its images"
        ) from error
    return SERVED + quote(below.as_posix())


def tasks(chosen: Iterable[Prediction], root: Path, model: str) -> str:
    """Return tasks to import, JSON. root: what Label Studio serves; raises as `served` does."""
    listed = [
        {
            "data": {
                "image": served(one.image.path, root),
                FILE: str(one.image.path.resolve()),
            },
            "predictions": [
                {
                    "model_version": model,
                    "score": round(one.probability, 6),
                    "result": [
                        {
                            "id": f"image-{number}",
                            "type": "choices",
                            "from_name": NAME,
                            "to_name": "image",
                            "value": {"choices": [one.label]},
                        }
                    ],
                }
            ],
        }
        for number, one in enumerate(chosen)
    ]
    return json.dumps(listed, indent=2, ensure_ascii=False) + "\n"


def interface(classes: Sequence[str]) -> str:
    """Return the labelling interface that the tasks are for, XML."""
    choices = "".join(f"    <Choice value={quoteattr(name)}/>\n" for name in classes)
    return (
        '<View>\n  <Image name="image" value="$image" zoom="true"/>\n'
        f'  <Choices name="{NAME}" toName="image" choice="single" showInLine="true">\n'
        f"{choices}  </Choices>\n</View>\n"
    )


def read_labels(export: Path) -> tuple[dict[Path, str], list[str]]:
    """Return the labels in Label Studio's export (format JSON), by file, and what was left out.

    Annotations that were cancelled or skipped do not count. An image whose annotators disagree is
    left out. Raises DataError where it is no such export.
    """
    try:
        plain: Any = json_file(export)
        found = {Path(task["data"][FILE]): _labels(task["annotations"]) for task in plain}
    except OSError as error:
        raise DataError(f"{export}: cannot be read ({error.strerror}): name the export") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{export}: no export of tasks of `fedapp next-to-label` ({type(error).__name__}: "
            f"{error}): export as JSON, not JSON-MIN or CSV"
        ) from error
    notes = [
        f"{file}: {'no label' if not labels else 'labels ' + ', '.join(sorted(labels))}: left out"
        for file, labels in found.items()
        if len(labels) != 1
    ]
    return {file: labels.pop() for file, labels in found.items() if len(labels) == 1}, notes


def _labels(annotations: Iterable[Mapping[str, Any]]) -> set[str]:
    return {
        choice
        for one in annotations
        if not one.get("was_cancelled")
        for result in one["result"]
        if result["from_name"] == NAME
        for choice in result["value"]["choices"]
    }


def labelled_table(data: Path, labels: Mapping[Path, str], out: Path) -> str:
    """Return a site's table with new labels in it, CSV as OWN_DATA.md has it.

    data: the site's folder or CSV file, whose images, groups and splits stay. out: where the table
    will lie, as its paths count from there. Raises DataError where the data have faults, a labelled
    image is not among them, or `out` is not in their folder.
    """
    listing, root = list_own(data, ()), data.parent if data.is_file() else data
    if listing.faults:
        raise DataError(f"{listing.faults[0]} (`fedapp check` names all faults)")
    if out.resolve().parent != root.resolve() or out.suffix != ".csv":
        raise DataError(f"{out}: a table lies beside its images: name a .csv file in {root}")
    entries = {entry.path.resolve(): entry for entry in listing.entries}
    if strange := [file for file in labels if file not in entries]:
        raise DataError(f"{strange[0]}: not one of the images of {data}: name the data it is of")
    rows = [
        {"path": one.name, "label": labels.get(file, one.label),
         "bag": "" if file in labels else one.bag,  # stands in the place of a label
         "split": one.part, PATIENT if listing.by_patient else GROUP: one.group}
        for file, one in entries.items()
    ]  # fmt: skip
    used = [name for name in COLUMNS if name in _ALWAYS or any(row.get(name) for row in rows)]
    text = io.StringIO()
    table = csv.DictWriter(text, used, extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()
