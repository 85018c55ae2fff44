"""A user's own data set, as `data.name=tests.arrays:vectors` names it."""

import numpy as np
from sklearn.datasets import load_digits


def vectors() -> dict[str, object]:
    """Handwritten digits as vectors of 64 numbers."""
    digits = load_digits()
    names = [f"digit {c}" for c in digits.target_names]
    return {"inputs": digits.data.astype(np.float32), "labels": digits.target, "classes": names}


def images() -> dict[str, object]:
    """Dark and bright images, without names of their classes."""
    labels = np.arange(60) % 2
    grain = np.random.default_rng(0).integers(0, 100, (60, 1, 8, 8))
    pixels = grain + 100 * labels[:, None, None, None]
    return {"inputs": pixels.astype(np.uint8), "labels": labels}


def failing() -> dict[str, object]:
    """Fail as a user's function may."""
    raise KeyError("name of a patient")


def partly() -> dict[str, object]:
    """The digits as vectors; nobody knows the classes of the second half."""
    whole = vectors()
    labels = np.array(whole["labels"])
    labels[len(labels) // 2 :] = -1
    return {**whole, "labels": labels}
