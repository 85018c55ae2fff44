"""A model's answers to a person's images, as CSV."""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedapp.data.folder import decode_all
from fedapp.ground.errors import DataError
from fedapp.learn.uncertainty import SCORING_BATCH
from fedapp.models.description import Recipe
from fedapp.models.model import SiteModel

COLUMNS = ("file", "class", "probability", "entropy")


@dataclass(frozen=True)
class Prediction:
    """What a model says of an image: its first class, with which probability in [0, 1].

    entropy: of all its probabilities, in nats, in [0, ln C]: 0 is sure, ln C is no idea.
    """

    file: str
    label: str
    probability: float
    entropy: float


def predictions(
    model: SiteModel, recipe: Recipe, images: Sequence[tuple[str, Path]]
) -> Iterator[list[Prediction]]:
    """Yield the answers to images, by name and path, batch by batch and in their order.

    Raises DataError where the model takes no images, or one of them cannot be used.
    """
    if not recipe.images:
        raise DataError(
            f"the model takes numbers of shape {list(recipe.inputs)}, no images: use it "
            "from Python (docs/USING_A_MODEL.md)"
        )
    for start in range(0, len(images), SCORING_BATCH):
        batch = images[start : start + SCORING_BATCH]
        answers = model.probabilities(read([path for _, path in batch], recipe))
        top, label = answers.max(1)
        entropy = torch.special.entr(answers.double()).sum(1)
        yield [
            Prediction(name, recipe.classes[c], p, h)
            for (name, _), c, p, h in zip(
                batch, label.tolist(), top.tolist(), entropy.tolist(), strict=True
            )
        ]


def read(files: Sequence[Path], recipe: Recipe) -> Tensor:
    """Return images uint8 [n, *inputs], n >= 1, brought to size and channels as own data are."""
    channels, height, width = recipe.inputs
    side = height if height == width else 0  # a model of oblong images takes them as they are
    decoded = decode_all(files, side, channels, recipe.window)
    for file, image in zip(files, decoded, strict=True):
        if image.shape != recipe.inputs:
            raise DataError(
                f"{file}: {image.shape[1]} x {image.shape[2]} pixels, the model takes "
                f"{height} x {width}: bring it to that size"
            )
    return torch.stack(decoded)


def as_csv(found: Sequence[Prediction]) -> str:
    """Return predictions as lines of CSV, without the header."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerows((p.file, p.label, f"{p.probability:.6f}", f"{p.entropy:.6f}") for p in found)
    return out.getvalue()


def predict_all(
    model: SiteModel,
    recipe: Recipe,
    images: Sequence[tuple[str, Path]],
    told: Callable[[int], None],
) -> str:
    """Return the whole CSV. told: is told how many images are done."""
    parts, done = [",".join(COLUMNS) + "\n"], 0
    for found in predictions(model, recipe, images):
        parts.append(as_csv(found))
        done += len(found)
        told(done)
    return "".join(parts)
