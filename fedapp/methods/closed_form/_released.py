"""The closed form of sums with noise: what a site releases, once (`_protected` has what follows).

An image with features f, |f| <= 1, adds f f^T to the second moment and, if it has a label, 1 to its
class's count and f to its class's sum. By the solution of these sums, which everybody knows, a site
then guesses the class of each unlabelled image; counts and sums of guessed classes are the second
release. So every image is counted in one class and in one second moment, whatever it is. As numbers
of two rows with equal noise, each block times its weight (`COUNTED`, 1, `SQUARED`), one image
changes both together by at most `SENSITIVITY`: the account is that of one release. The Frobenius
norm of f f^T is |f|^2, and is that of its upper triangle where what is beside the diagonal stands
times sqrt(2).

Noise grows with the number of features, so these are first projected to `SIZE` numbers by a random
matrix that everybody knows (Johnson and Lindenstrauss 1984), and cut to the norm 1. Heads that
follow lie in that subspace, and take the features themselves.
"""

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from fedapp.ground.rng import numpy_stream
from fedapp.learn.params import Params, Schema

RELEASED, GUESSED_SUMS = "released", "guessed_sums"
"""Roles of a site's two rows, and names of their tensors."""
SIZE = 128
"""Numbers that features are projected to, where they are more."""
COUNTED, SQUARED = 0.3, 0.5
"""Weights of counts and of the second moment beside sums; docs/results/privacy.md."""
SENSITIVITY = math.sqrt(COUNTED**2 + 1 + SQUARED**2)


def projection(seed: int, features: int) -> Tensor:
    """Return d x p orthonormal columns, float64, for all sites; the identity for d <= `SIZE`."""
    if features <= SIZE:
        return torch.eye(features, dtype=torch.float64)
    drawn = numpy_stream(seed, "projection", features).standard_normal((features, SIZE))
    columns: Tensor = torch.linalg.qr(torch.from_numpy(drawn))[0]
    return columns


def shortened(features: Tensor, columns: Tensor) -> Tensor:
    """Return features [n, d], |f| <= 1, in a subspace's coordinates: float64 [n, p], norm <= 1.

    columns: as of `projection`. Norms are what they were, on average; what is longer than 1 is cut.
    """
    rows: Tensor = features.double().cpu() @ columns / scale(columns)
    within: Tensor = rows / rows.norm(dim=1, keepdim=True).clamp_min(1.0)
    return within


def scale(columns: Tensor) -> float:
    """Return sqrt(p / d): what is left of a vector's length in a subspace, on average."""
    return math.sqrt(columns.shape[1] / columns.shape[0])


@dataclass(frozen=True, eq=False)
class Released:
    """A site's row, or the sum of several sites'.

    counts: [C], images of each class. sums: [C, p], of their f. second: [p, p], sum of f f^T of all
    images; of guessed classes [0, 0]. All float64; with noise, nothing of it need be possible.
    """

    counts: Tensor
    sums: Tensor
    second: Tensor

    @classmethod
    def of(cls, rows: Tensor, labels: Tensor, classes: int, others: Tensor | None = None) -> Self:
        """Return the sums over rows [n, p] in classes int64 [n].

        others: rows [m, p] that are in the second moment too; None: there is no second moment. All
        are float64, of norm 1 at most, and on the CPU.
        """
        sums = torch.zeros(classes, rows.shape[1], dtype=torch.float64)
        sums.index_add_(0, labels, rows)
        counts = torch.bincount(labels, minlength=classes).double()
        second = rows[:0, :0] if others is None else rows.T @ rows + others.T @ others
        return cls(counts, sums, second)

    def __add__(self, other: "Released") -> "Released":
        return Released(
            self.counts + other.counts, self.sums + other.sums, self.second + other.second
        )

    def with_guesses(self, other: "Released") -> "Released":
        """Return the same with images counted in the classes that they seem to be of."""
        return replace(self, counts=self.counts + other.counts, sums=self.sums + other.sums)

    def to_params(self, role: str = RELEASED) -> Params:
        """Return the row of a role, float64 [C (1 + p)] and, of the first, p (p + 1) / 2 more."""
        rows, columns, root = _triangle(len(self.second))
        triangle = SQUARED * self.second[rows, columns] * root
        return {role: torch.cat([COUNTED * self.counts, self.sums.flatten(), triangle])}

    @classmethod
    def from_params(cls, params: Params, classes: int, size: int) -> Self:
        """Return what `to_params` wrote."""
        [row] = params.values()
        of_class = classes * (1 + size)
        counts, sums, triangle = row.split([classes, classes * size, len(row) - of_class])
        size_seen = size if len(triangle) else 0
        rows, columns, root = _triangle(size_seen)
        second = torch.zeros(size_seen, size_seen, dtype=torch.float64)
        second[rows, columns] = second[columns, rows] = triangle / (SQUARED * root)
        return cls(counts / COUNTED, sums.view(classes, size), second)


def released_schemas(classes: int, features: int) -> dict[str, Schema]:
    """Return the schemas of `Released.to_params` for C classes and d features, by role."""
    size = min(features, SIZE)
    of_class, triangle = classes * (1 + size), size * (size + 1) // 2
    return {
        RELEASED: {RELEASED: ((of_class + triangle,), torch.float64)},
        GUESSED_SUMS: {GUESSED_SUMS: ((of_class,), torch.float64)},
    }


def _triangle(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows and columns of the upper triangle, and what its numbers are times."""
    rows, columns = torch.triu_indices(size, size)
    return rows, columns, torch.where(rows == columns, 1.0, math.sqrt(2)).double()
