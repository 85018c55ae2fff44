"""The closed form of sums with noise: what a site releases, once (`_protected` has what follows).

In two rows. The first has the sum of all images' coordinates f (`_coordinates`), cut to |f| <= 1,
and their number: their mean is the middle m, from which all that follows is measured, since images
are closer to their mean than to 0. An image then is g = (f - m) / `RADIUS`, cut to |g| <= 1. The
second row has, for each class and for unlabelled images, their number and the sum of g; and of all
images the second moment, the sum of g g^T. As numbers with equal noise, each block times
its weight, one image changes the first row by at most `FIRST_ROW` and the second by at most
`SECOND_ROW`. Together that is `SENSITIVITY`, and the account is that of one release, though the
second row is made in knowledge of the first (Dong, Roth, Su 2022). An unlabelled image adds nothing
to the sums of classes, so the second moment can take more of it (`UNLABELLED`). Its sum of g is
there because the mean of g is not 0: images that were cut have moved it. The Frobenius norm of
g g^T is |g|^2, and is that of its upper triangle where what is beside the diagonal stands times
sqrt(2).

Where a site knows whose its images are, these bounds hold for all images of one patient together:
what they add to a row is scaled until it is as long as one image's may be. So a patient with many
images counts for about one image, and the numbers in the rows, which are scaled along, say how many
images the sums are worth. The server divides by these.

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
RADIUS = 0.6
"""Length to which an image's distance from the middle is cut."""
MIDDLED, COUNTED, SQUARED, OTHERS = 0.1, 0.2, 0.5, 0.25
"""Weights of the first row, of numbers of images, of the second moment of labelled images, and of
the sum of unlabelled ones, beside the sums of classes."""
FIRST_ROW = math.sqrt(2) * MIDDLED
SECOND_ROW = math.sqrt(COUNTED**2 + 1 + SQUARED**2)
SENSITIVITY = math.hypot(FIRST_ROW, SECOND_ROW)
"""L2 norms of what one image or patient changes at most: in each row, and in both."""
UNLABELLED = math.sqrt(1 + SQUARED**2 - OTHERS**2)
"""Weight of the second moment of unlabelled images: they change the row by no more."""


def shortened(rows: Tensor, middle: Tensor | None = None) -> Tensor:
    """Return coordinates [n, d], float64 and on the CPU, what is longer than 1 cut to that norm.

    A row with NaN or infinity becomes 0: whoever sends a network or a middle can have numbers
    overflow for one image alone, which then would change the sums by more than any image may.
    middle: [d], from which they are measured, in parts of `RADIUS`; None: from 0, as they are.
    """
    rows = rows.double().cpu()
    if middle is not None:
        rows = (rows - middle) / RADIUS
    rows = torch.where(rows.isfinite().all(1, keepdim=True), rows, 0.0)
    within: Tensor = rows / rows.norm(dim=1, keepdim=True).clamp_min(1.0)
    return within


def totals(rows: Tensor, patients: Tensor | None = None) -> Params:
    """Return a site's first row, float64 [d + 1], of coordinates [n, d] of norm 1 at most.

    patients: whose each is, int64 [n]; None: each image stands by itself.
    """
    each = torch.cat([rows, torch.ones(len(rows), 1, dtype=torch.float64)], 1)
    if patients is not None:
        whose = patients.unique(return_inverse=True)[1]
        each = each.new_zeros(int(whose.max()) + 1, each.shape[1]).index_add_(0, whose, each)
        each = each * (math.sqrt(2) / each.norm(dim=1, keepdim=True)).clamp_max(1.0)
    return {TOTALS: MIDDLED * each.sum(0)}


def middle_of(total: Tensor) -> Tensor:
    """Return the middle [d] that a sum of first rows [d + 1] says."""
    return total[:-1] / total[-1].clamp_min(MIDDLED)


@dataclass(frozen=True, eq=False)
class Released:
    """A site's second row, or the sum of several sites'.

    counts: [C + 1], images of each class, and unlabelled ones. sums: [C + 1, d], of their g.
    second: [d, d], sum of g g^T of all images, times `SQUARED` of labelled ones and `UNLABELLED` of
    others. All float64; with noise, nothing of it need be possible.
    """

    counts: Tensor
    sums: Tensor
    second: Tensor

    @classmethod
    def of(
        cls,
        rows: Tensor,
        labels: Tensor,
        classes: int,
        others: Tensor,
        patients: Tensor | None = None,
    ) -> Self:
        """Return the sums over rows [n, d] in classes int64 [n], and over others [m, d] in none.

        patients: whose each of rows and others is, int64 [n + m]; None: each image stands by
        itself. Rows are float64, of norm 1 at most, and on the CPU.
        """
        every, kinds = torch.cat([rows, others]), torch.full((len(rows) + len(others),), classes)
        kinds[: len(rows)] = labels
        parts = torch.ones(len(every), dtype=torch.float64)
        if patients is not None:
            parts = parts_of_patients(every, kinds, classes, patients)
        sums = torch.zeros(classes + 1, rows.shape[1], dtype=torch.float64)
        sums.index_add_(0, kinds, parts[:, None] * every)
        counts = torch.bincount(kinds, parts, minlength=classes + 1)
        weights = parts * weights_of(kinds, classes)
        return cls(counts, sums, (weights[:, None] * every).T @ every)

    @property
    def weight(self) -> float:
        """What the second moment is to be divided by; at least that of one image."""
        labelled, other = self.counts[:-1].sum(), self.counts[-1]
        return max(float(SQUARED * labelled + UNLABELLED * other), SQUARED)

    @property
    def mean(self) -> Tensor:
        """The mean of all images' g, [d], weighted as they are in the second moment."""
        return (SQUARED * self.sums[:-1].sum(0) + UNLABELLED * self.sums[-1]) / self.weight

    def __add__(self, other: "Released") -> "Released":
        return Released(
            self.counts + other.counts, self.sums + other.sums, self.second + other.second
        )

    def to_params(self) -> Params:
        """Return the row, float64 [(C + 1) (d + 1) + d (d + 1) / 2]."""
        rows, columns, root = _triangle(len(self.second))
        triangle = self.second[rows, columns] * root
        sums = self.sums * _beside(len(self.sums))
        return {RELEASED: torch.cat([COUNTED * self.counts, sums.flatten(), triangle])}

    @classmethod
    def from_params(cls, params: Params, classes: int, size: int) -> Self:
        """Return what `to_params` wrote."""
        row = params[RELEASED]
        groups = classes + 1
        counts, sums, triangle = row.split([groups, groups * size, len(row) - groups * (size + 1)])
        rows, columns, root = _triangle(size)
        second = torch.zeros(size, size, dtype=torch.float64)
        second[rows, columns] = second[columns, rows] = triangle / root
        return cls(counts / COUNTED, sums.view(groups, size) / _beside(groups), second)


def weights_of(kinds: Tensor, classes: int) -> Tensor:
    """Return what g g^T of each image is times, [n]; kinds: classes, `classes` of unlabelled."""
    both = torch.tensor([SQUARED, UNLABELLED], dtype=torch.float64)
    return both[(kinds == classes).long()]


def parts_of_patients(rows: Tensor, kinds: Tensor, classes: int, patients: Tensor) -> Tensor:
    """Return the part of each image that counts, in (0, 1], [n]: one for all images of a patient.

    With it a patient's images together change the second row by at most `SECOND_ROW`. rows: [n, d],
    of norm 1 at most. kinds: as in `weights_of`. patients: int64 [n].
    """
    found = torch.ones(len(rows), dtype=torch.float64)
    whose, images = patients.unique(return_inverse=True, return_counts=True)[1:]
    for of in whose.argsort(stable=True).split(images.tolist()):
        if len(of) < 2:
            continue
        g, kind = rows[of], kinds[of]
        sums = torch.zeros(classes + 1, g.shape[1], dtype=torch.float64).index_add_(0, kind, g)
        root = weights_of(kind, classes).sqrt()[:, None] * g
        # The Frobenius norm of sum w g g^T, by the smaller of two matrices.
        second = root @ root.T if len(g) < g.shape[1] else root.T @ root
        counts = COUNTED * torch.bincount(kind).double()
        sums = sums * _beside(len(sums))
        length = (counts.square().sum() + sums.square().sum() + second.square().sum()).sqrt()
        found[of] = (SECOND_ROW / length).clamp_max(1.0)
    return found


def released_schemas(classes: int, size: int) -> dict[str, Schema]:
    """Return the schemas of what is released for C classes and d features, by role."""
    of_group, triangle = (classes + 1) * (size + 1), size * (size + 1) // 2
    return {
        TOTALS: {TOTALS: ((size + 1,), torch.float64)},
        MIDDLE: {MIDDLE: ((size,), torch.float64)},
        RELEASED: {RELEASED: ((of_group + triangle,), torch.float64)},
    }


def _beside(groups: int) -> Tensor:
    """Return what sums are times in the row, [C + 1, 1]: 1 of a class, `OTHERS` of unlabelled."""
    weights = torch.ones(groups, 1, dtype=torch.float64)
    weights[-1] = OTHERS
    return weights


def _triangle(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows and columns of the upper triangle, and what its numbers are times."""
    rows, columns = torch.triu_indices(size, size)
    return rows, columns, torch.where(rows == columns, 1.0, 2.0).double().sqrt()
