"""The closed form from noisy sums: what a site releases, once, and what the server makes of it.

A site releases two rows of numbers. The first is the sum of all images' coordinates f
(`_features`), clipped to |f| <= 1, and their number. It yields the mean m of all images, the
middle, from which everything else is measured, since images are closer to their mean than to 0: an
image becomes g = (f - m) / `RADIUS`, clipped to |g| <= 1. The second row has, for each class and
for unlabelled images, their number and the sum of g; and for all images the second moment, the sum
of g g^T. All numbers get the same noise, and each block of a row is multiplied by a weight, so that
one image changes the first row by at most `FIRST_ROW` and the second by at most `SECOND_ROW`.
Together that is `SENSITIVITY`, and the privacy account is that of a single release, although the
second row is made with knowledge of the first (Dong, Roth, Su 2022). An unlabelled image adds
nothing to the sums of classes, so the second moment can give it a larger weight
(`OTHER_MOMENT_WEIGHT`). The sum of g of unlabelled images is released because the mean of g is
not 0 once images were clipped. The Frobenius norm of g g^T is |g|^2, and equals the norm of its
upper triangle if the entries beside the diagonal are multiplied by sqrt(2).

Where a site knows which patient each image is of, these bounds hold for all images of one patient
together: their contribution to a row is scaled down to the bound of one image. So a patient with
many images counts as about one image, and the numbers of images in the rows, which are scaled too,
say how many images the sums are worth. The server divides by them.

Classes of unlabelled images are not guessed: guesses would use up a share of epsilon.
docs/results/privacy.md shows what unlabelled images are worth without guesses.

Everything that the server computes from noisy rows costs no further privacy. Nothing else leaves a
site: each site chooses the weight of its own images, and its temperature, by its own validation
images.
"""

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from fedapp.core.linear_algebra import eigh
from fedapp.learn.params import Params
from fedapp.methods.closed_form._contents import MIN_LOGLIK, OWN_WEIGHTS, RELEASED, TOTALS, Solution
from fedapp.methods.closed_form._discriminant import (
    Classes,
    Sums,
    noise_of,
    raise_unseen_logits,
)

RADIUS = 0.6
"""An image's distance from the middle is clipped to this length."""
FIRST_ROW_WEIGHT, COUNT_WEIGHT, MOMENT_WEIGHT, OTHER_SUM_WEIGHT = 0.1, 0.2, 0.5, 0.25
"""Weights of the blocks, relative to the sums of classes: of the first row, of the numbers of
images, of labelled images in the second moment, and of the sum of unlabelled images."""
FIRST_ROW = math.sqrt(2) * FIRST_ROW_WEIGHT
SECOND_ROW = math.sqrt(COUNT_WEIGHT**2 + 1 + MOMENT_WEIGHT**2)
SENSITIVITY = math.hypot(FIRST_ROW, SECOND_ROW)
"""Maximum L2 norm by which one image or patient changes the first row, the second row, and both."""
OTHER_MOMENT_WEIGHT = math.sqrt(1 + MOMENT_WEIGHT**2 - OTHER_SUM_WEIGHT**2)
"""Weight of unlabelled images in the second moment: with it they change the row by no more than
labelled ones."""


def clipped_rows(rows: Tensor, middle: Tensor | None = None) -> Tensor:
    """Return coordinates [n, d], float64 on the CPU, with rows longer than 1 scaled to norm 1.

    A row with NaN or infinity becomes 0: whoever sends a network or a middle could make the numbers
    of one image overflow, which then would change the sums by more than an image may. middle: [d],
    from which rows are measured, in units of `RADIUS`; None: they stay as they are.
    """
    rows = rows.double().cpu()
    if middle is not None:
        rows = (rows - middle) / RADIUS
    rows = torch.where(rows.isfinite().all(1, keepdim=True), rows, 0.0)
    within: Tensor = rows / rows.norm(dim=1, keepdim=True).clamp_min(1.0)
    return within


def first_row(rows: Tensor, patients: Tensor | None = None) -> Params:
    """Return a site's first row, float64 [d + 1], of coordinates [n, d] of norm at most 1.

    patients: the patient of each row, int64 [n]; None: each image counts by itself.
    """
    each = torch.cat([rows, torch.ones(len(rows), 1, dtype=torch.float64)], 1)
    if patients is not None:
        whose = patients.unique(return_inverse=True)[1]
        each = each.new_zeros(int(whose.max()) + 1, each.shape[1]).index_add_(0, whose, each)
        each = each * (math.sqrt(2) / each.norm(dim=1, keepdim=True)).clamp_max(1.0)
    return {TOTALS: FIRST_ROW_WEIGHT * each.sum(0)}


def middle_from_rows(total: Tensor) -> Tensor:
    """Return the middle [d] that follows from the sum of first rows [d + 1]."""
    return total[:-1] / total[-1].clamp_min(FIRST_ROW_WEIGHT)


@dataclass(frozen=True, eq=False)
class Released:
    """A site's second row, or the sum of several sites' rows.

    counts: [C + 1], images of each class, and unlabelled ones. sums: [C + 1, d], of their g.
    second: [d, d], the sum of g g^T over all images, times `MOMENT_WEIGHT` for labelled
    and `OTHER_MOMENT_WEIGHT` for other images. All are float64; with noise they need not be
    consistent.
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
        """Return the sums over labelled rows [n, d] and unlabelled others [m, d].

        labels: classes, int64 [n]. patients: the patient of each of rows and others, int64 [n + m];
        None: each image counts by itself. Rows are float64, of norm at most 1, and on the CPU.
        """
        every, kinds = torch.cat([rows, others]), torch.full((len(rows) + len(others),), classes)
        kinds[: len(rows)] = labels
        parts = torch.ones(len(every), dtype=torch.float64)
        if patients is not None:
            parts = patient_scales(every, kinds, classes, patients)
        sums = torch.zeros(classes + 1, rows.shape[1], dtype=torch.float64)
        sums.index_add_(0, kinds, parts[:, None] * every)
        counts = torch.bincount(kinds, parts, minlength=classes + 1)
        weights = parts * moment_weights(kinds, classes)
        return cls(counts, sums, (weights[:, None] * every).T @ every)

    @property
    def weight(self) -> float:
        """What the second moment must be divided by, at least the weight of one image."""
        labelled, other = self.counts[:-1].sum(), self.counts[-1]
        return max(float(MOMENT_WEIGHT * labelled + OTHER_MOMENT_WEIGHT * other), MOMENT_WEIGHT)

    @property
    def mean(self) -> Tensor:
        """The mean of all images' g, [d], weighted as in the second moment."""
        labelled, other = self.sums[:-1].sum(0), self.sums[-1]
        return (MOMENT_WEIGHT * labelled + OTHER_MOMENT_WEIGHT * other) / self.weight

    def __add__(self, other: "Released") -> "Released":
        return Released(
            self.counts + other.counts, self.sums + other.sums, self.second + other.second
        )

    def to_params(self) -> Params:
        """Return the row, float64 [(C + 1) (d + 1) + d (d + 1) / 2]."""
        rows, columns, root = _triangle(len(self.second))
        triangle = self.second[rows, columns] * root
        sums = self.sums * _sum_weights(len(self.sums))
        return {RELEASED: torch.cat([COUNT_WEIGHT * self.counts, sums.flatten(), triangle])}

    @classmethod
    def from_params(cls, params: Params, classes: int, size: int) -> Self:
        """Return the sums that `to_params` wrote."""
        row = params[RELEASED]
        groups = classes + 1
        counts, sums, triangle = row.split([groups, groups * size, len(row) - groups * (size + 1)])
        rows, columns, root = _triangle(size)
        second = torch.zeros(size, size, dtype=torch.float64)
        second[rows, columns] = second[columns, rows] = triangle / root
        return cls(counts / COUNT_WEIGHT, sums.view(groups, size) / _sum_weights(groups), second)


def moment_weights(kinds: Tensor, classes: int) -> Tensor:
    """Return the weight of each image's g g^T, [n].

    kinds: int64 [n], the class of each image, C for unlabelled ones.
    """
    both = torch.tensor([MOMENT_WEIGHT, OTHER_MOMENT_WEIGHT], dtype=torch.float64)
    return both[(kinds == classes).long()]


def patient_scales(rows: Tensor, kinds: Tensor, classes: int, patients: Tensor) -> Tensor:
    """Return the factor in (0, 1] of each image, [n], equal for all images of a patient.

    With it a patient's images together change the second row by at most `SECOND_ROW`. rows: [n, d],
    of norm at most 1. kinds: as in `moment_weights`. patients: int64 [n].
    """
    found = torch.ones(len(rows), dtype=torch.float64)
    whose, images = patients.unique(return_inverse=True, return_counts=True)[1:]
    for of in whose.argsort(stable=True).split(images.tolist()):
        if len(of) < 2:
            continue
        g, kind = rows[of], kinds[of]
        sums = torch.zeros(classes + 1, g.shape[1], dtype=torch.float64).index_add_(0, kind, g)
        root = moment_weights(kind, classes).sqrt()[:, None] * g
        # The Frobenius norm of sum w g g^T, by the smaller of two matrices.
        second = root @ root.T if len(g) < g.shape[1] else root.T @ root
        counts = COUNT_WEIGHT * torch.bincount(kind).double()
        sums = sums * _sum_weights(len(sums))
        length = (counts.square().sum() + sums.square().sum() + second.square().sum()).sqrt()
        found[of] = (SECOND_ROW / length).clamp_max(1.0)
    return found


def _sum_weights(groups: int) -> Tensor:
    """Return the factors of the sums, [C + 1, 1]: 1 for classes, less for unlabelled images."""
    weights = torch.ones(groups, 1, dtype=torch.float64)
    weights[-1] = OTHER_SUM_WEIGHT
    return weights


def _triangle(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows and columns of the upper triangle, and the factors of its numbers."""
    rows, columns = torch.triu_indices(size, size)
    return rows, columns, torch.where(rows == columns, 1.0, 2.0).double().sqrt()


NOISY_RIDGE = 0.3
"""lambda, in units of the mean eigenvalue of the covariance within classes."""
SITE_TEMPERATURES = (0.75, 1.5, 3.0, 6.0, 12.0, 24.0, 48.0)
"""Candidates for the temperature that a site chooses."""
TEMPERATURE_RATIO = 3.0
"""Temperature of the common answer, in units of the features' default temperature: noise makes the
discriminant surer still. The prior of a site's own temperature is log-normal around it."""
DEFAULT_OWN_WEIGHT, LOG_OFFSET = 10.0, 0.3
"""The prior of a site's weight of own images is log-normal around the first number, after adding
the second to both. Own images have no noise, so they are worth more than those of all sites with
noise."""


@dataclass(frozen=True, eq=False)
class Denoised:
    """A noisy second moment after its noise was removed.

    moment: [d, d]. vectors: its eigenvectors [d, d]. seen: bool [d], directions whose eigenvalues
    are not hidden by the noise. floor: the eigenvalue of all other directions.
    """

    moment: Tensor
    vectors: Tensor
    seen: Tensor
    floor: float


def denoised(moment: Tensor, radius: float) -> Denoised:
    """Return a noisy second moment [d, d] with its noise removed.

    radius: of the spectrum of the noise, a semicircle around 0; 0: no noise. An eigenvalue t of the
    images above radius / 2 appears at t + radius^2 / (4 t) (Peche 2006), and is moved back. All
    others are hidden by the noise. They share equally what they add to the trace, which is known
    well; that share is the floor.
    """
    values, vectors = eigh((moment + moment.T) / 2)
    seen = values > radius
    true = torch.where(seen, (values + (values**2 - radius**2).clamp_min(0).sqrt()) / 2, 0.0)
    hidden = (values.sum() - true.sum()) / (~seen).sum().clamp_min(1)
    floor = max(float(hidden), 0.0)
    return Denoised((vectors * true.clamp_min(floor)) @ vectors.T, vectors, seen, floor)


def shrunk_means(apart: Tensor, erring: Tensor, counts: Tensor, clear: Denoised) -> Tensor:
    """Return noisy class means [C, d], relative to the mean of all, shrunk towards 0.

    The factor is that of the best linear estimate: it is smaller the more noise there is compared
    with the distances of the means. There is one factor for the directions that are seen in the
    second moment, and another for those that are hidden, where means lie closer. The factors are
    those of a class with the usual noise and equal for all classes: if some classes were shrunk
    more, they would be the answer to images near the mean. Only a class with more noise than usual,
    so with few images, is shrunk further, equally in all directions. erring: [C], variance of the
    noise in each number of a mean. counts: [C], images of each class; for a class without images
    the mean is 0.
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
    """Return class means and covariance within classes, in coordinates.

    noise: upper limit of the standard deviation of each number of the row; 0: none. middle: as in
    `clipped_rows`. A class whose count is at most twice its noise is treated as having no images.
    No eigenvalue within classes is below the floor of the second moment.
    """
    size, images = len(total.second), max(float(total.counts.sum()), 1.0)
    counts = torch.where(total.counts > 2 * noise / COUNT_WEIGHT, total.counts, 0.0)[:-1]
    mean = total.mean
    means = total.sums[:-1] / counts.clamp_min(1.0)[:, None]
    apart = torch.where(counts[:, None] > 0, means - mean, 0.0)
    erring = (noise / counts.clamp_min(1.0)).square()
    moment = total.second / total.weight - torch.outer(mean, mean)
    clear = denoised(moment, noise * math.sqrt(2 * size) / total.weight)
    whole, floor = clear.moment, clear.floor
    sums = counts[:, None] * shrunk_means(apart, erring, counts, clear)
    exact = noise_of(counts)
    found = Classes(counts, torch.zeros_like(sums), whole, images, exact)
    if bool(counts.any()):
        found = Classes.of(Sums(counts, sums, images, torch.zeros_like(middle), images * whole))
    values, vectors = found.spectrum
    within = (vectors * values.clamp_min(floor)) @ vectors.T
    means = middle + RADIUS * (mean + found.means)
    return Classes(counts, means, RADIUS**2 * within, images, exact)


def solution_of(classes: Classes, default_temperature: float) -> Solution:
    """Return the common solution.

    Its prior is 0: the federation's mean mix is not released. default_temperature: of the features,
    above 0.
    """
    level, t = classes.level(NOISY_RIDGE), TEMPERATURE_RATIO * default_temperature
    weight, bias = classes.head(level)
    none = torch.zeros(len(classes.counts), dtype=torch.float64)
    return Solution(classes, weight / t, bias / t, none, level, t)


def chosen_at_home(
    solution: Solution, known: tuple[Tensor, Tensor], seen: tuple[Tensor, Tensor], mix: Tensor
) -> Tensor:
    """Return the temperature and the weight of own images that a site uses, float64 [2].

    known: coordinates and labels of its labelled images. seen: the same of the validation images
    that decide. mix: the site's class mix [C]. The choice maximises the posterior: the prior of the
    temperature is log-normal around the solution's with variance 1/4, that of the weight around
    `DEFAULT_OWN_WEIGHT` with variance 1/2. With wider priors a site with few validation images
    loses a point of accuracy.
    """
    features, labels = seen[0].double(), seen[1]
    usual = solution.temperature
    rows, best = torch.arange(len(labels)), (-math.inf, usual, 0.0)
    for own in OWN_WEIGHTS if len(known[1]) else (0.0,):
        unusual = math.log((own + LOG_OFFSET) / (DEFAULT_OWN_WEIGHT + LOG_OFFSET)) ** 2
        weight, bias = (usual * part.double() for part in solution.head(*known, own))
        logits = raise_unseen_logits(features @ weight.T + bias)
        for t in SITE_TEMPERATURES:
            logs = torch.log_softmax(logits / t + mix.log(), dim=1)[rows, labels]
            score = float(logs.clamp_min(MIN_LOGLIK).sum()) - unusual
            best = max(best, (score - 2 * math.log(t / usual) ** 2, t, own))
    return torch.tensor(best[1:], dtype=torch.float64)
