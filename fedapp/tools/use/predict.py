"""`fedapp predict`: writes a model's answers to images as CSV, and a summary to standard error."""

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
from fedapp.core.formatting import count, counted, csv_text, duration, percent
from fedapp.core.names import csv_cell
from fedapp.core.progress import image_progress
from fedapp.data.own.vectors import vectors_file
from fedapp.evaluation.reliability_warnings import NOT_TO_DECIDE, shift_warnings
from fedapp.experiment.run_folder import RunFolder, find_run
from fedapp.models.conformal import coverage_caution
from fedapp.models.description import DESCRIPTION, Recipe
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
"""How many sites an error names at most."""
UNREAD = 1
"""Exit code if some images could not be used."""
_Batch = tuple[list[tuple[str, ...]], list[UnreadableImage]]
"""Rows of CSV, and the images that cannot be used."""


def model_folder(named: str) -> Path:
    """Return the model's folder that a person named.

    named: the folder itself, RUN/SITE, or a run with one model, by its name or folder. Raises
    RunError if a run has models of several sites.
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
            return folder  # reading it will raise that there is no model
        return beside if (beside / DESCRIPTION).is_file() else folder
    if not (run / "run.json").is_file():
        return folder
    found = sorted(path.parent for path in RunFolder(run).models_root.glob(f"*/{DESCRIPTION}"))
    if not found:
        how = f"`fedapp site {named} --check` rebuilds them"
        raise RunError(f"{run}: no site's model is here: {RunFolder(run).models_elsewhere or how}")
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:_NAMED]) + ", ..." * (len(found) > _NAMED)
        raise RunError(
            f"{run}: has models of {len(found)} sites ({names}): name one, such as "
            f"{named.rstrip('/')}/{found[0].name}"
        )
    return found[0]


def predict(model: Path, images: Sequence[Path], out: Path | None, asked: PredictionOptions) -> int:
    """Write a model's answers to images as CSV while they are computed; return the exit code.

    out: the file; None: standard output. A summary goes to standard error. Raises DataError if no
    image can be used, and what `list_several` and `load_model` raise.
    """
    if out and out.exists() and any(one.exists() and out.samefile(one) for one in images):
        raise DataError(f"{out}: it is the list of images: name another file for the answers")
    loaded, description = load_model(model, pick_device("auto"))
    for light in description.lights:
        if light.endswith(NOT_TO_DECIDE):  # before the answers, which it is about
            print(f"Warning: {light}", file=sys.stderr)
    _check_kind(images, description.model)
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
    print(f"{where}{counted(len(listed), 'images')} in {taken}", file=sys.stderr)
    lines = tally.lines(coverage_caution(description.calibration, asked.coverage))
    for line in [*lines, *_reliability_lines(model, tally)]:
        print(line, file=sys.stderr)
    return UNREAD if tally.unread else 0


def _check_kind(sources: Sequence[Path], model: Recipe) -> None:
    """Raise DataError where a model of vectors is asked about something else, before it is read."""
    other = [source for source in sources if source.exists() and not vectors_file(source)]
    if len(model.inputs) == 1 and other:
        raise DataError(
            f"{other[0]}: the model takes vectors of {model.inputs[0]} numbers: name an .npz or "
            ".parquet file of them, laid out as docs/OWN_DATA.md says, made by the agreed rules"
        )


def _write(
    out: Path | None, images: int, columns: Sequence[str], batches: Iterable[_Batch]
) -> list[UnreadableImage]:
    """Write batches of answers as CSV while they come; return the images that cannot be used.

    out: the file; None: standard output. images: how many there are. Raises DataError if none of
    them can be used.
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


def _reliability_lines(model: Path, tally: "Tally") -> list[str]:
    """Return warnings if the mix of predicted classes is unlike that of the site's test images.

    There are none if the evidence is not beside the model, as for one that was handed on.
    """
    evidence = read_evidence(model)
    if evidence is None or (answers := evidence.answers.get("kept")) is None:
        return []
    before = torch.bincount(answers.argmax(1), minlength=len(tally.classes)).tolist()
    now = [tally.predicted[name] for name in tally.classes]
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
    """Return a line that counts the images that cannot be used, if there are any."""
    if not unread:
        return []
    return [f"images that cannot be used: {count(len(unread))}; the first: {unread[0].why}"]


@dataclass
class Tally:
    """Counts for the summary: of all images, and of those whose label the CSV file has."""

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
    predicted: Counter[str] = field(default_factory=Counter)
    unread: list[UnreadableImage] = field(default_factory=list)

    def add(self, found: Iterable[Prediction | UnreadableImage]) -> None:
        """Count a batch of answers."""
        for one in found:
            if isinstance(one, UnreadableImage):
                continue
            self.read += 1
            self.predicted[one.label] += 1
            self.single += not one.abstains
            if label := one.image.label:
                self.labelled += 1
                self.right += one.label == label
                self.covered += label in one.inside
                self.single_labelled += not one.abstains
                self.single_right += one.inside == (label,)
                self.foreign += label not in self.classes

    def lines(self, note: str) -> list[str]:
        """Return the summary as lines. note: a caution about the prediction sets; may be empty."""
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
