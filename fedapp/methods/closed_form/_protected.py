"""The closed form of sums with noise: what a site releases, once, and what is made of it.

In two rows. The first has the sum of all images' coordinates f (`_features`), cut to |f| <= 1,
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

All that the server does with noisy rows costs nothing more. Nothing else leaves a site: each
chooses by its own validation images how much its own labelled images count, and its temperature.
"""

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from fedapp.learn.params import Params
from fedapp.methods.closed_form._contents import OWN_WEIGHTS, RELEASED, TOTALS, WORST, Solution
from fedapp.methods.closed_form._discriminant import Classes, Sums, bounded

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


def _beside(groups: int) -> Tensor:
    """Return what sums are times in the row, [C + 1, 1]: 1 of a class, `OTHERS` of unlabelled."""
    weights = torch.ones(groups, 1, dtype=torch.float64)
    weights[-1] = OTHERS
    return weights


def _triangle(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows and columns of the upper triangle, and what its numbers are times."""
    rows, columns = torch.triu_indices(size, size)
    return rows, columns, torch.where(rows == columns, 1.0, 2.0).double().sqrt()


RIDGE = 0.3
"""lambda, in mean eigenvalues of the covariance within classes."""
TEMPERATURES = (0.75, 1.5, 3.0, 6.0, 12.0, 24.0, 48.0)
"""What a site may divide its logits by."""
LIKELY = 6.0
"""Temperature of the common answer, around which a site's own is log-normal before it looks."""
USUAL, FEW = 10.0, 0.3
"""Weight of own images around which a site's own is log-normal before it looks, with `FEW` added to
both. Own images have no noise; so they are worth more than what all sites' are with it."""


@dataclass(frozen=True, eq=False)
class Cleared:
    """What is left of a noisy second moment without its noise.

    moment: [d, d]. vectors: its eigenvectors [d, d]. seen: bool [d], whose eigenvalues are not
    hidden in the noise. floor: eigenvalue of all the others.
    """

    moment: Tensor
    vectors: Tensor
    seen: Tensor
    floor: float


def cleared(moment: Tensor, radius: float) -> Cleared:
    """Return what is left of a noisy second moment [d, d] without its noise.

    radius: of the spectrum of the noise, a semicircle around 0; 0: there is none. An eigenvalue t
    of the images above radius / 2 is seen at t + radius^2 / (4 t) (Peche 2006), and is put back.
    All others are hidden in the noise: they share evenly what they add to the trace, which is known
    well. That share is the floor.
    """
    values, vectors = torch.linalg.eigh((moment + moment.T) / 2)
    seen = values > radius
    true = torch.where(seen, (values + (values**2 - radius**2).clamp_min(0).sqrt()) / 2, 0.0)
    hidden = (values.sum() - true.sum()) / (~seen).sum().clamp_min(1)
    floor = max(float(hidden), 0.0)
    return Cleared((vectors * true.clamp_min(floor)) @ vectors.T, vectors, seen, floor)


def drawn(apart: Tensor, erring: Tensor, counts: Tensor, clear: Cleared) -> Tensor:
    """Return noisy class means [C, d] drawn to the mean of all, which they are measured from.

    As far as the noise in them outweighs how far they lie from there: the best linear estimate, one
    factor in all directions that are seen in the second moment, another in those that are hidden,
    where means lie nearer. It is that of a class of usual noise, and the same for all: were some
    drawn farther, they would be the answer to images near it. Only a class of more noise
    than usual, so of few images, is drawn farther, by a factor in all directions. erring: [C],
    variance of the noise in each number of a mean. counts: [C], images of each class; of those
    without any the mean is 0.
    """
    weights = counts.square() / counts.square().sum().clamp_min(1.0)  # by how exact means are
    noise = float(weights @ erring)

    def size(means: Tensor) -> float:
        return max(float(weights @ means.square().mean(1)) - noise, 1e-12)

    turned, whole = apart @ clear.vectors, size(apart)
    for part in (clear.seen, ~clear.seen):
        if bool(part.any()):
            here = size(turned[:, part])
            turned[:, part] *= here / (here + noise)
    farther = ((whole + noise) / (whole + erring)).clamp_max(1.0)
    return farther[:, None] * turned @ clear.vectors.T


def classes_of(total: Released, noise: float, middle: Tensor) -> Classes:
    """Return class means and covariance within classes, of coordinates.

    noise: standard deviation of each number of the row at most; 0: none. middle: as of `shortened`.
    A class whose count is not above twice its noise is taken for one that nobody has images of. No
    eigenvalue within classes is below the second moment's floor.
    """
    size, images = len(total.second), max(float(total.counts.sum()), 1.0)
    counts = torch.where(total.counts > 2 * noise / COUNTED, total.counts, 0.0)[:-1]
    mean = total.mean
    means = total.sums[:-1] / counts.clamp_min(1.0)[:, None]
    apart = torch.where(counts[:, None] > 0, means - mean, 0.0)
    erring = (noise / counts.clamp_min(1.0)).square()
    moment = total.second / total.weight - torch.outer(mean, mean)
    clear = cleared(moment, noise * math.sqrt(2 * size) / total.weight)
    whole, floor = clear.moment, clear.floor
    sums = counts[:, None] * drawn(apart, erring, counts, clear)
    found = Classes(counts, torch.zeros_like(sums), whole, images)
    if bool(counts.any()):
        found = Classes.of(Sums(counts, sums, images, torch.zeros_like(middle), images * whole))
    values, vectors = found.spectrum
    within = (vectors * values.clamp_min(floor)) @ vectors.T
    return Classes(counts, middle + RADIUS * (mean + found.means), RADIUS**2 * within, images)


def solution_of(classes: Classes) -> Solution:
    """Return the common answer. The federation's mean mix is worth nothing: it has no noise."""
    level = classes.level(RIDGE)
    weight, bias = classes.head(level)
    none = torch.zeros(len(classes.counts), dtype=torch.float64)
    return Solution(classes, weight / LIKELY, bias / LIKELY, none, level, LIKELY)


def chosen_at_home(
    solution: Solution, known: tuple[Tensor, Tensor], seen: tuple[Tensor, Tensor], mix: Tensor
) -> Tensor:
    """Return the temperature and the weight of own images that a site uses, float64 [2].

    known: coordinates and labels of its labelled images. seen: of the validation images that
    decide. mix: the site's class mix [C]. The likeliest is chosen; before a look temperatures are
    log-normal around `LIKELY`, with variance 1/4, and weights around `USUAL`, with variance 1/2:
    wider, few validation images cost a point.
    """
    features, labels = seen[0].double(), seen[1]
    rows, best = torch.arange(len(labels)), (-math.inf, LIKELY, 0.0)
    for own in OWN_WEIGHTS if len(known[1]) else (0.0,):
        unusual = math.log((own + FEW) / (USUAL + FEW)) ** 2
        weight, bias = (LIKELY * part.double() for part in solution.head(*known, own))
        logits = bounded(features @ weight.T + bias)
        for t in TEMPERATURES:
            logs = torch.log_softmax(logits / t + mix.log(), dim=1)[rows, labels]
            score = float(logs.clamp_min(WORST).sum()) - unusual
            best = max(best, (score - 2 * math.log(t / LIKELY) ** 2, t, own))
    return torch.tensor(best[1:], dtype=torch.float64)
