"""The closed form of sums with noise: what a site releases, once (`_protected` has what follows).

In two rows. The first is the sum of all images' features f, |f| <= 1: its mean is the middle m,
from which all that follows is measured, since features are closer to their mean than to 0. An image
then is g = (f - m) / `RADIUS`, cut to |g| <= 1. The second row has the second moment, to which
every image adds g g^T, and for each class the count and the sum of g of labelled images. As numbers
with equal noise, each block times its weight (`MIDDLED`, `COUNTED`, 1, `SQUARED`), one image
changes all of it together by at most `SENSITIVITY`, and the account is that of one release, though
the second is made in knowledge of the first (Dong, Roth, Su 2022). The Frobenius norm of g g^T is
|g|^2, and is that of its upper triangle where what is beside the diagonal stands times sqrt(2).

Classes of unlabelled images are not guessed: the share of epsilon that this took was worth more in
the other sums (docs/results/privacy.md).

The noise's spectrum grows with the root of the number of features alone, and a random subspace
loses more than that (docs/results/privacy.md). So features are projected where they are more than
`SIZE`, for the row's length: by a random matrix that everybody knows (Johnson and Lindenstrauss
1984). Heads that follow lie in that subspace, and take the features themselves.
"""

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from fedapp.ground.rng import numpy_stream
from fedapp.learn.params import Params, Schema

TOTALS, RELEASED = "totals", "released"
"""Roles of a site's two rows, and names of their tensors."""
MIDDLE = "middle"
"""Role of what the server makes of the first, and name of its tensor."""
SIZE = 1024
"""Numbers that features are projected to, where they are more."""
RADIUS = 0.7
"""Length to which an image's distance from the middle is cut."""
MIDDLED, COUNTED, SQUARED = 0.1, 0.2, 0.5
"""Weights of the middle, of counts and of the second moment beside sums; docs/results/privacy.md.
"""
SENSITIVITY = math.sqrt(MIDDLED**2 + COUNTED**2 + 1 + SQUARED**2)


def projection(seed: int, features: int) -> Tensor:
    """Return d x p orthonormal columns, float64, for all sites; the identity for d <= `SIZE`."""
    if features <= SIZE:
        return torch.eye(features, dtype=torch.float64)
    drawn = numpy_stream(seed, "projection", features).standard_normal((features, SIZE))
    columns: Tensor = torch.linalg.qr(torch.from_numpy(drawn))[0]
    return columns


def shortened(features: Tensor, columns: Tensor, middle: Tensor | None = None) -> Tensor:
    """Return features [n, d], |f| <= 1, in a subspace's coordinates: float64 [n, p], norm <= 1.

    columns: as of `projection`. Norms are what they were, on average; what is longer than 1 is cut.
    middle: [p], from which rows are measured, in parts of `RADIUS`; None: from 0, as they are.
    """
    rows: Tensor = features.double().cpu() @ columns / scale(columns)
    if middle is not None:
        rows = (rows - middle) / RADIUS
    within: Tensor = rows / rows.norm(dim=1, keepdim=True).clamp_min(1.0)
    return within


def scale(columns: Tensor) -> float:
    """Return sqrt(p / d): what is left of a vector's length in a subspace, on average."""
    return math.sqrt(columns.shape[1] / columns.shape[0])


@dataclass(frozen=True, eq=False)
class Released:
    """A site's second row, or the sum of several sites'.

    counts: [C], images of each class. sums: [C, p], of their g. second: [p, p], sum of g g^T of all
    images. All float64; with noise, nothing of it need be possible.
    """

    counts: Tensor
    sums: Tensor
    second: Tensor

    @classmethod
    def of(cls, rows: Tensor, labels: Tensor, classes: int, others: Tensor) -> Self:
        """Return the sums over rows [n, p] in classes int64 [n].

        others: rows [m, p] that are in the second moment too. All are float64, of norm 1 at most,
        and on the CPU.
        """
        sums = torch.zeros(classes, rows.shape[1], dtype=torch.float64)
        sums.index_add_(0, labels, rows)
        counts = torch.bincount(labels, minlength=classes).double()
        return cls(counts, sums, rows.T @ rows + others.T @ others)

    def __add__(self, other: "Released") -> "Released":
        return Released(
            self.counts + other.counts, self.sums + other.sums, self.second + other.second
        )

    def to_params(self) -> Params:
        """Return the row, float64 [C (1 + p) + p (p + 1) / 2]."""
        rows, columns, root = _triangle(len(self.second))
        triangle = SQUARED * self.second[rows, columns] * root
        return {RELEASED: torch.cat([COUNTED * self.counts, self.sums.flatten(), triangle])}

    @classmethod
    def from_params(cls, params: Params, classes: int, size: int) -> Self:
        """Return what `to_params` wrote."""
        row = params[RELEASED]
        of_class = classes * (1 + size)
        counts, sums, triangle = row.split([classes, classes * size, len(row) - of_class])
        rows, columns, root = _triangle(size)
        second = torch.zeros(size, size, dtype=torch.float64)
        second[rows, columns] = second[columns, rows] = triangle / (SQUARED * root)
        return cls(counts / COUNTED, sums.view(classes, size), second)


def released_schemas(classes: int, features: int) -> dict[str, Schema]:
    """Return the schemas of `Released.to_params` for C classes and d features, by role."""
    size = min(features, SIZE)
    of_class, triangle = classes * (1 + size), size * (size + 1) // 2
    return {
        TOTALS: {TOTALS: ((size,), torch.float64)},
        MIDDLE: {MIDDLE: ((size,), torch.float64)},
        RELEASED: {RELEASED: ((of_class + triangle,), torch.float64)},
    }


def _triangle(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows and columns of the upper triangle, and what its numbers are times."""
    rows, columns = torch.triu_indices(size, size)
    return rows, columns, torch.where(rows == columns, 1.0, math.sqrt(2)).double()
