"""Bags of one site, of whose inputs the class proportions alone are known: what is told of them.

For M bags and C classes. Counts are inputs of each class in each bag, [M, C].
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

RANK_TOLERANCE = 1e-9
"""A singular value below this share of the largest is taken for 0."""
FIT_TOLERANCE = 1e-12
"""Relative error of a table's rows at which `proportionally_fitted` ends."""
MAX_FIT_ROUNDS = 10_000
"""Rounds of `proportionally_fitted`; extreme tables need some hundred."""


def proportions_of(counts: NDArray[np.integer]) -> Tensor:
    """Return Pi, float64 [M, C]: each row sums to 1, that of an empty bag is 0."""
    known = torch.from_numpy(counts.astype(np.float64))
    return known / known.sum(1, keepdim=True).clamp(min=1)


def condition_number(proportions: Tensor) -> float:
    """Return the condition number of Pi [M, C], at least 1.

    It says how much an error in P(bag | x) grows. Only classes that occur in the bags count: of the
    others they say nothing, and ask nothing. Infinite where the rank is below their number: then no
    classifier follows from the bags.
    """
    occurring = proportions.double()[:, proportions.sum(0) > 0]
    if not occurring.numel():
        return 1.0
    values = torch.linalg.svdvals(occurring)
    if len(values) < occurring.shape[1] or values[-1] <= values[0] * RANK_TOLERANCE:
        return float("inf")
    return float(values[0] / values[-1])


def why_unidentifiable(proportions: Tensor) -> tuple[str, str] | None:
    """Return what is wrong with bags of which no classifier follows, and the remedy; None: nothing.

    proportions: Pi [M, C]. It is wrong where their rank is below the number of classes in them.
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
    """Say how many bags sites have, and how well each site's tell its classes apart.

    tables: Pi [M, C] of each site that has bags, one at least.
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
    """Return the first and the last number, or the one that both are."""
    return " to ".join(dict.fromkeys(f"{n:{shown}}" for n in (ascending[0], ascending[-1])))


def with_noise(proportions: Tensor, strength: float, draw: np.random.Generator) -> Tensor:
    """Return wrong proportions: Pi * ((2 g - 1) e + 1), g ~ U[0, 1] for each entry, cut to [0, 1].

    proportions: Pi, float64 [M, C]. strength: e, in [0, 2]; 0: Pi itself. A row that would be 0
    stays as it is. Rows need not sum to 1 (Lu et al. 2022, Table E.9; printed there with the 1 in
    another place, so that e = 0 would not be clean).
    """
    factors = (2 * torch.from_numpy(draw.random(tuple(proportions.shape))) - 1) * strength + 1
    changed = (proportions * factors).clamp(0, 1)
    return torch.where(changed.sum(1, keepdim=True) > 0, changed, proportions)


def proportionally_fitted(
    table: NDArray[np.float64], rows: NDArray[np.float64], columns: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the table [M, C], each row and each column times a factor, with these sums.

    Iterative proportional fitting (Deming and Stephan 1940). table: above 0. rows: [M], above 0.
    columns: [C], at least 0. Both have the same sum, above 0.
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
