"""Sites with vectors of their own, small enough for a test: handwritten digits as 64 numbers."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from fedapp.core.settings import DataSettings
from fedapp.experiment.experiment import Experiment
from fedapp.learn.networks.mlp import MLPSettings
from tests import own

CLASSES, NAMES = own.CLASSES, own.NAMES
SIZE, ENCODER = 64, "ink 8x8"


def agreed(**changes: object) -> DataSettings:
    values: dict[str, object] = {
        "name": "own", "classes": ", ".join(CLASSES), "sites": ", ".join(NAMES),
        "vector_size": SIZE, "encoder": ENCODER, "mean": 0.3, "std": 0.4,
    }  # fmt: skip
    return DataSettings(**{**values, **changes})  # type: ignore[arg-type]


def experiment(root: Path, **changes: object) -> Experiment:
    """Three sites below `root`, which `three_sites` fills, and a small network."""
    settings = {"data": agreed(root=str(root)), "model": MLPSettings(hidden="24")}
    return own.experiment(root, **{**settings, **changes})


def arrays(site: int, step: int = 3) -> dict[str, NDArray[Any]]:
    """Return what a site has: digits 0 to 2, a quarter without a label, the split its own."""
    digits = load_digits()
    rows = np.flatnonzero(digits.target < len(CLASSES))[:360][site::step]
    place = np.arange(len(rows))
    labels = np.array(CLASSES)[digits.target[rows]]
    part = np.array(["train", "train", "test", "val", "train", "train", "train", "train"])
    split = part[place % 8]
    return {
        "ids": np.array([f"scan{row:04d}" for row in rows]),
        "vectors": (digits.data[rows] / 16).astype(np.float32),
        "labels": np.where((place % 4 == 0) & (split == "train"), "", labels),
        "split": split,
        "encoder": np.array(ENCODER),
    }


def three_sites(root: Path, **changes: Any) -> Path:
    """Write each site's file. changes: of the arrays; None leaves one out."""
    for number, name in enumerate(NAMES):
        write(root / name, **{**arrays(number), **changes})
    return root


def write(folder: Path, **found: Any) -> Path:
    """Write vectors.npz of the arrays that are not None."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "vectors.npz"
    np.savez(path, **{name: array for name, array in found.items() if array is not None})
    return path
