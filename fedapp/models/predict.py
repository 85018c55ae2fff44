"""Answers of a model to a person's images, with its uncertainty, batch by batch and as CSV rows."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedapp.core.errors import ConfigError, DataError, ImageError, RunError, one_line
from fedapp.core.names import csv_cell, from_csv_cell
from fedapp.core.rng import seeded
from fedapp.data.folder import decode_all
from fedapp.data.own.vectors import read_rows
from fedapp.data.window import DepthError
from fedapp.learn.predictors import combined
from fedapp.learn.uncertainty import (
    dropout_sample,
    entropy_decomposition,
    features_of,
    inputs_per_pass,
)
from fedapp.models.conformal import DEFAULT_COVERAGE, Calibration, Sets, prediction_sets
from fedapp.models.description import Recipe
from fedapp.models.listing import ListedInput
from fedapp.models.model import SiteModel

COLUMNS = (
    "file", "class", "probability", "entropy", "mutual_information", "set", "abstain",
)  # fmt: skip
DROPOUT_PASSES = 20
"""Default number of dropout samples of each network for an image."""
SET_SEPARATOR = "|"
"""Separates the classes of a set in a cell. In the name of a class it is escaped (`set_cell`)."""


@dataclass(frozen=True)
class PredictionOptions:
    """Options of a prediction.

    coverage: of the prediction sets, in (0, 1). sets: their kind. passes: dropout samples, >= 1.
    """

    coverage: float = DEFAULT_COVERAGE
    sets: Sets = "lac"
    passes: int = DROPOUT_PASSES

    def __post_init__(self) -> None:
        if not 0 < self.coverage < 1:
            raise ConfigError(
                f"coverage is {self.coverage:g}, must lie between 0 and 1: write 0.9 for 90 %"
            )


@dataclass(frozen=True)
class Prediction:
    """A model's answer to one image.

    label: its most probable class; probability: of that class, in [0, 1]. entropy,
    mutual_information: in nats (`answer_batch`). lead: that probability less the one of the second
    class, in [0, 1]. inside: the classes of its prediction set.
    """

    image: ListedInput
    label: str
    probability: float
    entropy: float
    mutual_information: float
    lead: float
    inside: tuple[str, ...]

    @property
    def abstains(self) -> bool:
        """Whether the set holds more than one class or none, so that a person should look."""
        return len(self.inside) != 1


@dataclass(frozen=True)
class UnreadableImage:
    """An image that cannot be used. why: the error, in one line."""

    image: ListedInput
    why: str


def predictions(
    model: SiteModel,
    calibration: Calibration,
    images: Sequence[ListedInput],
    options: PredictionOptions,
) -> Iterator[list[Prediction | UnreadableImage]]:
    """Yield the answers to the inputs, batch by batch, in the order of the inputs.

    Raises DataError where the model takes inputs of another kind.
    """
    classes = model.recipe.classes
    for number, batch in enumerate(batches(images, model.recipe)):
        found: dict[ListedInput, Prediction | UnreadableImage] = {
            one.image: one for one in batch.unread
        }
        if batch.read:
            answers = answer_batch(model, batch.pixels, options.passes, number)
            probabilities = answers.probabilities
            top, label = probabilities.max(1)
            second = probabilities.topk(min(2, len(classes)), 1).values[:, -1]
            inside = prediction_sets(probabilities, calibration, options.sets, options.coverage)
            for row, image in enumerate(batch.read):
                found[image] = Prediction(
                    image=image,
                    label=classes[int(label[row])],
                    probability=float(top[row]),
                    entropy=float(answers.entropy[row]),
                    mutual_information=float(answers.mutual_information[row]),
                    lead=float(top[row] - second[row]),
                    inside=tuple(classes[c] for c in inside[row].nonzero()[:, 0].tolist()),
                )
        yield [found[image] for image in batch.listed]


@dataclass(frozen=True)
class FindingAnswer:
    """A model's answer to one image where the classes are findings.

    probabilities: of each finding by itself, [F], in [0, 1].
    """

    image: ListedInput
    probabilities: Sequence[float]


def findings(
    model: SiteModel, images: Sequence[ListedInput]
) -> Iterator[list[FindingAnswer | UnreadableImage]]:
    """Yield the answers of a model of findings, batch by batch, in the order of the inputs.

    Raises DataError as `predictions` does.
    """
    for batch in batches(images, model.recipe):
        found: dict[ListedInput, FindingAnswer | UnreadableImage] = {
            one.image: one for one in batch.unread
        }
        if batch.read:
            rows = model.probabilities(batch.pixels).tolist()
            found |= {
                one: FindingAnswer(one, row) for one, row in zip(batch.read, rows, strict=True)
            }
        yield [found[image] for image in batch.listed]


@dataclass(frozen=True, eq=False)
class Batch:
    """Inputs that the network answers together.

    listed: all of them. read: those that could be read; unread: the others. pixels: the inputs that
    were read, [len(read), *inputs], uint8; float32 of vectors.
    """

    listed: Sequence[ListedInput]
    read: Sequence[ListedInput]
    pixels: Tensor
    unread: Sequence[UnreadableImage]


def batches(images: Sequence[ListedInput], recipe: Recipe) -> Iterator[Batch]:
    """Yield batches of `inputs_per_pass` inputs, in the order of the inputs.

    Raises DataError where the model takes inputs of another kind.
    """
    if recipe.images and any(image.row is not None for image in images):
        raise DataError(f"{images[0].path}: vectors, but the model takes images: name some")
    values = None if recipe.images else _vectors(images, recipe)
    step = inputs_per_pass(recipe.inputs)
    for start in range(0, len(images), step):
        listed = images[start : start + step]
        if values is not None:
            rows = torch.tensor([image.row for image in listed])
            yield Batch(listed, listed, values[rows], ())
            continue
        try:
            whole = Batch(listed, listed, read_images([image.path for image in listed], recipe), ())
        except DataError:
            whole = _one_by_one(listed, recipe)  # finds the one that cannot be used
        yield whole


def _vectors(listed: Sequence[ListedInput], recipe: Recipe) -> Tensor:
    """Return all N vectors of the file of `listed`, float32 [N, D].

    Raises DataError where the model takes inputs of another kind or size.
    """
    shape = list(recipe.inputs)
    if len(shape) != 1:
        raise DataError(
            f"the model takes numbers of shape {shape}, no images: use it from Python "
            "(docs/USING_A_MODEL.md)"
        )
    if any(one.row is None for one in listed):
        raise DataError(f"the model takes vectors of {shape[0]} numbers: name an .npz or .parquet")
    return read_rows(listed[0].path, shape[0], recipe.encoder).values


def _one_by_one(listed: Sequence[ListedInput], recipe: Recipe) -> Batch:
    good, pixels, unread = [], [], []
    for image in listed:
        if not os.path.isfile(image.path):  # Path.is_file raises where the name is too long
            why = one_line(f"{image.path}: no such file: correct its path")
            unread.append(UnreadableImage(image, why))
            continue
        try:
            pixels.append(read_images([image.path], recipe))
            good.append(image)
        except DataError as error:
            unread.append(UnreadableImage(image, str(error)))
    return Batch(listed, good, torch.cat(pixels) if pixels else torch.empty(0), unread)


def read_images(files: Sequence[Path], recipe: Recipe) -> Tensor:
    """Return the images of n >= 1 files, uint8 [n, *inputs].

    Size and channels are changed as for the images of a site's own data. Raises ImageError, which
    names the file, where one cannot be used.
    """
    channels, height, width = recipe.inputs
    side = height if height == width else 0  # a model of oblong images takes them as they are
    try:
        decoded = decode_all(files, side, channels, recipe.window)
    except DepthError as error:  # the user cannot set a window: it belongs to the model
        lacking = (
            "it lacks the window of its own that the model reads such images by"
            if recipe.window
            else "the model learned from images of 8 bits"
        )
        remedy = "save it with 8 bits, as the model's site would"
        raise ImageError(error.file, f"{error.holds}, but {lacking}", remedy) from error
    for file, image in zip(files, decoded, strict=True):
        if image.shape != recipe.inputs:
            taken = f"the model takes {height} x {width}"
            what = f"{image.shape[1]} x {image.shape[2]} pixels, {taken}"
            raise ImageError(file, what, "bring it to that size")
    return torch.stack(decoded)


def csv_cells(one: Prediction | UnreadableImage) -> tuple[str, ...]:
    """Return the cells of an answer, by `COLUMNS`.

    Of an image that was not read, all but the name and "abstain" are empty.
    """
    if isinstance(one, UnreadableImage):
        return one.image.name, "", "", "", "", "", "yes"
    numbers = (one.probability, one.entropy, one.mutual_information)
    abstain = "yes" if one.abstains else "no"
    texts = [f"{number:.6f}" for number in numbers]
    return one.image.name, csv_cell(one.label), *texts, set_cell(one.inside), abstain


def csv_cells_of_findings(one: FindingAnswer | UnreadableImage, findings: int) -> tuple[str, ...]:
    """Return an image's cells: its name, and the probability of each finding.

    The latter are empty where the image was not read.
    """
    if isinstance(one, UnreadableImage):
        return one.image.name, *[""] * findings
    return one.image.name, *(f"{number:.6f}" for number in one.probabilities)


def set_cell(classes: Sequence[str]) -> str:
    r"""Return the classes of a set as one cell, `a|b`; in a name `|` is `\|`, and `\` is `\\`."""
    return csv_cell(SET_SEPARATOR.join(re.sub(r"([|\\])", r"\\\1", name) for name in classes))


def classes_in(text: str) -> tuple[str, ...]:
    """Return the classes of a cell of the column `set`; empty: none."""
    names = re.findall(r"(?:[^|\\]|\\.)+", from_csv_cell(text))
    return tuple(re.sub(r"\\(.)", r"\1", name) for name in names)


@dataclass(frozen=True, eq=False)
class BatchAnswers:
    """The answers of a model to n images, with its uncertainty.

    probabilities: float32 [n, C], without dropout, as of `SiteModel.probabilities`. entropy,
    mutual_information: float64 [n], in nats (`entropy_decomposition`).
    """

    probabilities: Tensor
    entropy: Tensor
    mutual_information: Tensor


@torch.inference_mode()
def answer_batch(model: SiteModel, images: Tensor, passes: int, batch: int) -> BatchAnswers:
    """Return the answers of a model to a batch of images, with its uncertainty.

    images: as for `SiteModel.probabilities`, 1 <= n <= `inputs_per_pass`. passes: dropout samples
    of each network, >= 1. batch: the number of the batch. The draws are keyed by it and by the
    model, so that the same batch has the same numbers every time.

    A sample of the model is one of its networks, drawn by its weight in the answer, with a dropout
    sample. So the uncertainty covers disagreement between the networks too. Raises RunError where
    a probability is NaN or infinite.
    """
    images = images.to(model.device)
    plain, samples, weights = [], [], []
    with seeded(model.device, 0, "study", model.recipe.sha256, batch):
        for network, one in model.predictors:
            features = features_of(network.eval(), images, model.normalise)
            plain.append(torch.softmax(network.tail(features), dim=1).cpu())
            for _ in range(passes):
                drawn = torch.softmax(network.tail(features, dropout_sample), dim=1)
                samples.append(one.reweight(drawn.cpu()))
                weights.append(one.weight / passes)
    answer = combined([one for _, one in model.predictors], plain)
    if not bool(answer.isfinite().all()):
        raise RunError("the model answers NaN: use one of another round or site")
    return BatchAnswers(
        answer, *entropy_decomposition(torch.stack(samples), torch.tensor(weights).double())
    )
