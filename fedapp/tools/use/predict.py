"""`fedapp predict` as a person sees it."""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import torch

from fedapp.core.devices import pick_device
from fedapp.core.disk import open_atomic
from fedapp.core.errors import DataError, RunError
from fedapp.core.formatting import count, csv_text, duration, percent
from fedapp.core.names import csv_cell
from fedapp.core.progress import image_progress
from fedapp.evaluation.reliability_warnings import shift_warnings
from fedapp.experiment.run_folder import RunFolder, find_run
from fedapp.models.conformal import coverage_caution
from fedapp.models.description import DESCRIPTION
from fedapp.models.evidence import read_evidence
from fedapp.models.listing import ListedInput, list_several
from fedapp.models.model import SiteModel, load_model
from fedapp.models.predict import (
    COLUMNS,
    Prediction,
    PredictionOptions,
    UnreadableImage,
    csv_cells,
    csv_cells_of_findings,
    findings,
    predictions,
)

_NAMED = 4
"""Sites named where a list of sites could be long."""
UNREAD = 1
"""Exit code where some images could not be used."""
_Batch = tuple[list[tuple[str, ...]], list[UnreadableImage]]
"""Rows of CSV, and the images among them that cannot be used."""


def model_folder(named: str) -> Path:
    """Return a model's folder: itself, or the only one of a run, or RUN/SITE.

    named: a folder, or a run by its name or folder. Raises RunError where a run has several.
    """
    folder = Path(named).expanduser()
    if (folder / DESCRIPTION).is_file():
        return folder
    try:
        run = find_run(named)
    except RunError:
        name, _, site = named.rstrip("/").rpartition("/")
        try:
            beside = RunFolder(find_run(name)).models_root / site
        except RunError:
            return folder  # reading it will say that there is no model
        return beside if (beside / DESCRIPTION).is_file() else folder
    if not (run / "run.json").is_file():
        return folder
    found = sorted(path.parent for path in RunFolder(run).models_root.glob(f"*/{DESCRIPTION}"))
    if not found:
        raise RunError(
            f"{run}: no site's model is here: `fedapp site {named} --check` makes them anew"
        )
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:_NAMED]) + ", ..." * (len(found) > _NAMED)
        raise RunError(
            f"{run}: has models of {len(found)} sites ({names}): name one, such as "
            f"{named.rstrip('/')}/{found[0].name}"
        )
    return found[0]


def predict(model: Path, images: Sequence[Path], out: Path | None, asked: PredictionOptions) -> int:
    """Write a model's answers to images to a CSV file, or to standard output, as they come.

    Returns the exit code. What was found is said on standard error. Raises DataError where not one
    image can be used, and as `list_several` and `load_model` do.
    """
    if out and out.exists() and any(one.exists() and out.samefile(one) for one in images):
        raise DataError(f"{out}: it is the list of images: name another file for the answers")
    loaded, description = load_model(model, pick_device("auto"))
    listed, tally, began = (
        list_several(images),
        Tally(asked, description.model.classes),
        time.monotonic(),
    )
    if out and any(out.samefile(one.path) for one in listed if out.exists()):
        raise DataError(f"{out}: it is one of the images: name another file for the answers")
    if description.model.finds:
        return _findings(loaded, listed, out)

    def rows() -> Iterator[_Batch]:
        for found in predictions(loaded, description.calibration, listed, asked):
            tally.add(found)
            yield (
                [csv_cells(one) for one in found],
                [x for x in found if isinstance(x, UnreadableImage)],
            )

    tally.unread = _write(out, len(listed), COLUMNS, rows())
    where = "" if out is None else f"{out}: "
    taken = duration(time.monotonic() - began)
    print(f"{where}{count(len(listed))} images in {taken}", file=sys.stderr)
    lines = tally.lines(coverage_caution(description.calibration, asked.coverage))
    for line in [*lines, *_lights(model, tally)]:
        print(line, file=sys.stderr)
    return UNREAD if tally.unread else 0


def _write(
    out: Path | None, images: int, columns: Sequence[str], batches: Iterable[_Batch]
) -> list[UnreadableImage]:
    """Write answers as CSV, as they come; return the images that cannot be used.

    out: None: standard output. images: how many there are. Raises DataError where none can be used.
    """
    unread: list[UnreadableImage] = []
    target: AbstractContextManager[BinaryIO]
    target = nullcontext(sys.stdout.buffer) if out is None else open_atomic(out, durable=False)
    with target as file, image_progress("images", images) as done:
        file.write(csv_text([columns]).encode())
        for rows, failed in batches:
            file.write(csv_text(rows).encode())
            unread += failed
            done(len(rows))
        if len(unread) == images:
            raise DataError(f"no image can be used; the first: {unread[0].why}")
    return unread


def _lights(model: Path, tally: "Tally") -> list[str]:
    """Say where the answers' class mix is new; only where the model's site keeps its evidence."""
    evidence = read_evidence(model)
    if evidence is None or (answers := evidence.answers.get("kept")) is None:
        return []
    before = torch.bincount(answers.argmax(1), minlength=len(tally.classes)).tolist()
    now = [tally.said[name] for name in tally.classes]
    return [f"Warning: {light}" for light in shift_warnings(before, now, tally.classes)]


def _findings(model: SiteModel, images: Sequence[ListedInput], out: Path | None) -> int:
    """Write the probability of each finding, a column each, as `predict` does."""
    names = model.recipe.classes
    answers = (
        (
            [csv_cells_of_findings(one, len(names)) for one in found],
            [one for one in found if isinstance(one, UnreadableImage)],
        )
        for found in findings(model, images)
    )
    unread = _write(out, len(images), ("file", *map(csv_cell, names)), answers)
    print("findings, each by itself: no sets, and no threshold is chosen", file=sys.stderr)
    for line in _not_read(unread):
        print(line, file=sys.stderr)
    return UNREAD if unread else 0


def _not_read(unread: Sequence[UnreadableImage]) -> list[str]:
    """Say that some images cannot be used, where there are any."""
    if not unread:
        return []
    return [f"images that cannot be used: {count(len(unread))}; the first: {unread[0].why}"]


@dataclass
class Tally:
    """What is said at the end: of all images, and of those whose label the CSV file has."""

    asked: PredictionOptions
    classes: tuple[str, ...]
    read: int = 0
    single: int = 0
    labelled: int = 0
    right: int = 0
    covered: int = 0
    single_labelled: int = 0
    single_right: int = 0
    foreign: int = 0
    said: Counter[str] = field(default_factory=Counter)
    unread: list[UnreadableImage] = field(default_factory=list)

    def add(self, found: Iterable[Prediction | UnreadableImage]) -> None:
        """Count a batch."""
        for one in found:
            if isinstance(one, UnreadableImage):
                continue
            self.read += 1
            self.said[one.label] += 1
            self.single += not one.abstains
            if label := one.image.label:
                self.labelled += 1
                self.right += one.label == label
                self.covered += label in one.inside
                self.single_labelled += not one.abstains
                self.single_right += one.inside == (label,)
                self.foreign += label not in self.classes

    def lines(self, note: str) -> list[str]:
        """Return it as lines. note: what a person must know of the sets."""
        asked = f"{percent(self.asked.coverage)} %"
        lines = [
            f"sets of {asked} coverage ({self.asked.sets}): one class for {count(self.single)} "
            f"images; a person should look at the other {count(self.read - self.single)}"
        ]
        if note:
            lines.append(f"sets: {note}")
        if self.labelled:
            shares = (
                f"right {_of(self.right, self.labelled)}",
                f"label in the set {_of(self.covered, self.labelled)}, asked {asked}",
                f"right where the set has one class {_of(self.single_right, self.single_labelled)}",
            )
            lines.append(f"images with a label: {'; '.join(shares)}")
            lines.append(
                "that says how new images will fare if the model learned from none of them"
            )
        if self.foreign:
            lines.append(
                f"{count(self.foreign)} of them have a label that is no class of the model, which "
                f"counts as wrong; it knows {', '.join(self.classes)}"
            )
        return lines + _not_read(self.unread)


def _of(part: int, whole: int) -> str:
    share = f" ({percent(part / whole)} %)" if whole else ""
    return f"{part} of {whole}{share}"
