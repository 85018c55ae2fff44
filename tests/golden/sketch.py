"""What a run learned, in a few numbers: models that lie close together have close ones.

A vector's length and its products with three random vectors of standard normal numbers. Where two
vectors lie d apart, a product differs by a draw of N(0, d^2).
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load_file

from fedapp.core.rng import numpy_stream
from tests.flower.results import results

PRODUCTS = 3


def sketch(folder: Path) -> dict[str, list[float]]:
    """Return by role the length and the products of all newest contents of a run, in a row.

    Of models the difference from w_0 counts.
    """
    pool, found = results(folder)["pool"], {}
    w_0 = _vector(folder, pool["-1"][1])
    for key, (_, digest, *_) in sorted(pool.items()):
        role = key.partition(" ")[2] or "model"
        vector = _vector(folder, digest)
        found.setdefault(role, []).append(vector - w_0 if role == "model" else vector)
    whole = {role: np.concatenate(each) for role, each in found.items()}
    return {role: _sketched(role, vector) for role, vector in whole.items() if vector.any()}


def apart(one: dict[str, list[float]], other: dict[str, list[float]]) -> float:
    """Return the largest difference of two runs' numbers, by the first's length in that role."""
    if one.keys() != other.keys():
        return float("inf")
    return max(
        max(abs(a - b) for a, b in zip(numbers, other[role], strict=True)) / (numbers[0] or 1)
        for role, numbers in one.items()
    )


def _vector(folder: Path, digest: str) -> NDArray[np.float64]:
    tensors = load_file(folder / "pool" / digest[:2] / f"{digest}.safetensors")
    whole = [tensors[n] for n in sorted(tensors) if tensors[n].is_floating_point()]
    return np.concatenate([np.zeros(0), *(t.double().flatten().numpy() for t in whole)])


def _sketched(role: str, vector: NDArray[np.float64]) -> list[float]:
    draws = numpy_stream(0, "golden", role)
    products = [draws.standard_normal(len(vector)) @ vector for _ in range(PRODUCTS)]
    return [float(f"{number:.6g}") for number in (np.linalg.norm(vector), *products)]
