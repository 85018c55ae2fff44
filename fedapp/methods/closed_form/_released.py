"""The closed form of sums with noise: what a site releases, once (`_protected` has what follows).

In two rows. The first is the sum of all images' coordinates f (`_coordinates`), cut to |f| <= 1:
its mean is the middle m, from which all that follows is measured, since images are closer to their
mean than to 0. An image then is g = (f - m) / `RADIUS`, cut to |g| <= 1. The second row has the
second moment, to which every image adds g g^T, and for each class the count and the sum of g of
labelled images. As numbers with equal noise, each block times its weight (`MIDDLED`, `COUNTED`, 1,
`SQUARED`), one image changes all of it together by at most `SENSITIVITY`, and the account is that
of one release, though the second is made in knowledge of the first (Dong, Roth, Su 2022). The
Frobenius norm of g g^T is |g|^2, and is that of its upper triangle where what is beside the
diagonal stands times sqrt(2).

Classes of unlabelled images are not guessed: guesses would take a share of epsilon. What they are
worth without it: docs/results/privacy.md.
"""

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from fedapp.learn.params import Params, Schema

TOTALS, RELEASED = "totals", "released"
"""Roles of a site's two rows, and names of their tensors."""
MIDDLE = "middle"
"""Role of what the server makes of the first, and name of its tensor."""
RADIUS = 0.55
"""Length to which an image's distance from the middle is cut."""
MIDDLED, COUNTED, SQUARED = 0.1, 0.2, 0.5
"""Weights of the middle, of counts and of the second moment beside sums."""
SENSITIVITY = math.sqrt(MIDDLED**2 + COUNTED**2 + 1 + SQUARED**2)


def shortened(rows: Tensor, middle: Tensor | None = None) -> Tensor:
    """Return coordinates [n, d], float64 and on the CPU, what is longer than 1 cut to that norm.

    middle: [d], from which they are measured, in parts of `RADIUS`; None: from 0, as they are.
    """
    rows = rows.double().cpu()
    if middle is not None:
        rows = (rows - middle) / RADIUS
    within: Tensor = rows / rows.norm(dim=1, keepdim=True).clamp_min(1.0)
    return within


@dataclass(frozen=True, eq=False)
class Released:
    """A site's second row, or the sum of several sites'.

    counts: [C], images of each class. sums: [C, d], of their g. second: [d, d], sum of g g^T of all
    images. All float64; with noise, nothing of it need be possible.
    """

    counts: Tensor
    sums: Tensor
    second: Tensor

    @classmethod
    def of(cls, rows: Tensor, labels: Tensor, classes: int, others: Tensor) -> Self:
        """Return the sums over rows [n, d] in classes int64 [n].

        others: rows [m, d] that are in the second moment too. All are float64, of norm 1 at most,
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
        """Return the row, float64 [C (1 + d) + d (d + 1) / 2]."""
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


def released_schemas(classes: int, size: int) -> dict[str, Schema]:
    """Return the schemas of `Released.to_params` for C classes and d features, by role."""
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
