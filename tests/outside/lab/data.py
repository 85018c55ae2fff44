"""A data set: points around three places of a plane; which place is the class."""

import numpy as np


def spots():
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 3, 600)
    places = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    points = places[labels] + draw.normal(0, 0.7, (600, 2))
    return {"inputs": points.astype(np.float32), "labels": labels, "classes": ["a", "b", "c"]}
