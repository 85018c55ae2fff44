"""The class proportions of a site's bags, and how well they identify the classes.

A bag is a set of inputs of which only the class proportions are known. Shapes are written for M
bags and C classes. Counts are the inputs of each class in each bag, [M, C].
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

RANK_TOLERANCE = 1e-9
"""A singular value below this share of the largest one counts as 0."""
FIT_TOLERANCE = 1e-12
"""Relative error of the row sums at which `fit_to_sums` stops."""
MAX_FIT_ROUNDS = 10_000
"""Rounds of `fit_to_sums`, at most; extreme tables need some hundred."""


def proportions_of(counts: NDArray[np.integer]) -> Tensor:
    """Return Pi, float64 [M, C]. Each row sums to 1, except that the row of an empty bag is 0."""
    known = torch.from_numpy(counts.astype(np.float64))
    return known / known.sum(1, keepdim=True).clamp(min=1)


def condition_number(proportions: Tensor) -> float:
    """Return the condition number of Pi [M, C], at least 1.

    It is the factor by which an error in P(bag | x) can grow. Only classes that occur in the bags
    count, because the bags neither tell nor require anything about the others. It is infinite where
    the rank is below the number of these classes: then the bags do not determine a classifier.
    """
    occurring = proportions.double()[:, proportions.sum(0) > 0]
    if not occurring.numel():
        return 1.0
    values = torch.linalg.svdvals(occurring)
    if len(values) < occurring.shape[1] or values[-1] <= values[0] * RANK_TOLERANCE:
        return float("inf")
    return float(values[0] / values[-1])


def why_unidentifiable(proportions: Tensor) -> tuple[str, str] | None:
    """Return why the bags do not determine a classifier, and the remedy; None if they do.

    proportions: Pi [M, C]. They do not where the rank is below the number of classes that occur.
    """
    if condition_number(proportions) < float("inf"):
        return None
    filled = proportions[proportions.sum(1) > 0]
    classes = int((filled.sum(0) > 0).sum())
    if len(filled) < classes:
        bags = "is 1 bag" if len(filled) == 1 else f"are {len(filled)} bags"
        what = f"there {bags}, but {classes} classes in them"
        return what, "make at least as many bags as classes, with different proportions"
    return (
        f"its {len(filled)} bags do not tell {classes} classes apart: some have the proportions of "
        "others, or of others mixed",
        "give more bags, or bags with other proportions",
    )


def describe_bags(tables: Sequence[Tensor]) -> str:
    """Describe how many bags sites have, and how well each site's bags identify its classes.

    tables: Pi [M, C] of each site that has bags, at least one.
    """
    numbers = _range(sorted(len(table) for table in tables), "d")
    found = sorted(condition_number(table) for table in tables)
    where = "" if len(tables) == 1 else f" at each of {len(tables)} sites"
    lost = "; infinite: they do not tell the classes apart" if found[-1] == float("inf") else ""
    return (
        f"bags: {numbers}{where}; condition number of their class proportions "
        f"{_range(found, '.3g')}{lost}"
    )


def _range(ascending: Sequence[float], shown: str) -> str:
    """Return the first and the last number as "first to last", or one number if both are equal."""
    return " to ".join(dict.fromkeys(f"{n:{shown}}" for n in (ascending[0], ascending[-1])))


def with_noise(proportions: Tensor, strength: float, draw: np.random.Generator) -> Tensor:
    """Return wrong proportions: Pi * ((2 g - 1) e + 1), cut to [0, 1], g ~ U[0, 1] for each entry.

    proportions: Pi, float64 [M, C].
    strength: e, in [0, 2]; 0 gives Pi itself.

    A row that would become 0 stays unchanged. Rows need not sum to 1. (Lu et al. 2022, Table E.9,
    where the 1 is printed in another place, so that e = 0 would not give Pi.)
    """
    factors = (2 * torch.from_numpy(draw.random(tuple(proportions.shape))) - 1) * strength + 1
    changed = (proportions * factors).clamp(0, 1)
    return torch.where(changed.sum(1, keepdim=True) > 0, changed, proportions)


def fit_to_sums(
    table: NDArray[np.float64], rows: NDArray[np.float64], columns: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Scale the rows and columns of a table [M, C] by factors so that they have these sums.

    Iterative proportional fitting (Deming and Stephan 1940). table: entries above 0. rows: [M],
    above 0. columns: [C], at least 0. Both have the same sum, above 0.
    """
    fit = table
    for _ in range(MAX_FIT_ROUNDS):
        before = fit.sum(0)
        fit = fit * np.divide(columns, before, out=np.zeros_like(before), where=before > 0)
        sums = fit.sum(1)
        if np.all(np.abs(sums - rows) <= FIT_TOLERANCE * rows):
            break
        fit = fit * (rows / sums)[:, None]
    return fit
