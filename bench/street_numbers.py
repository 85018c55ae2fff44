"""MNIST made like house numbers (SVHN): `data.name=bench.street_numbers:rare`, or `:crowded`.

SVHN's digits occur as Benford's law has it, 1 most, and a picture shows parts of the digits beside
the one that is meant.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.data.datasets import load_dataset
from fedapp.ground.rng import numpy_stream
from fedapp.ground.settings import DataSettings

SHARES = (0.068, 0.189, 0.144, 0.116, 0.102, 0.094, 0.078, 0.076, 0.069, 0.064)
"""Of the digits 0 to 9 among SVHN's 73,257 training images."""
IMAGES = 20_000
APART = 17
"""Pixels from the middle of a digit to the middle of the next; MNIST's are 20 high and narrower."""


def rare() -> dict[str, Any]:
    """Return MNIST's images with the digits as often as in SVHN."""
    images, labels = _chosen()
    return {"inputs": images, "labels": labels}


def crowded() -> dict[str, Any]:
    """Return the same with parts of two other digits of these at the left and right edge."""
    images, labels = _chosen()
    draw = numpy_stream(0, "neighbours")
    left, right = (images[draw.permutation(len(images))] for _ in range(2))
    shown = images.copy()
    width = images.shape[-1]
    np.maximum(shown[..., : width - APART], left[..., APART:], out=shown[..., : width - APART])
    np.maximum(shown[..., APART:], right[..., : width - APART], out=shown[..., APART:])
    return {"inputs": shown, "labels": labels}


def _chosen() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    pool = load_dataset(DataSettings(name="mnist"), 0)
    labels = pool.labels.numpy()
    draw = numpy_stream(0, "as-often-as-in-svhn")
    chosen = np.concatenate([
        draw.permutation(np.flatnonzero(labels == digit))[: round(share * IMAGES)]
        for digit, share in enumerate(SHARES)
    ])  # fmt: skip
    order = draw.permutation(chosen)
    return pool.inputs.numpy()[order], labels[order]
