"""Linear discriminant analysis from sums: the closed form of a linear head over fixed features.

A site's sums are the counts and feature sums of its labelled images by class, and their second
moment. Sums can be added, so a federation's solution is that of the pooled labelled images, however
they are split. With class means m_c and covariance within classes W the logits are those of
Gaussian classes of one shape, all equally frequent: m_c^T P x - (m_c^T P m_c - tr(P W) / n_c) / 2,
P = (W + lambda mean(w) I)^-1, where w are the eigenvalues of W, and m_c is the mean of n_c images
(Fisher 1936; Moran and Murphy 1979; Friedman 1989). Related work: Fed3R
(Fani et al. 2024), FedCGS (Guan et al. 2025) and GH-OFL (Rahimi et al. 2025) send such sums over a
frozen network's features; one-shot federated ridge regression sends only the moments.

Everything is computed in float64 on the CPU.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import add
from typing import Self, TypeVar

import torch
from torch import Tensor

from fedapp.core.linear_algebra import eigh
from fedapp.learn.params import Params, Schema
from fedapp.methods.closed_form._rounded import (
    DEVIATIONS,
    MOST_DIRECTIONS,
    factor_of,
    factor_schema,
    scatter_of,
)

COUNTS, BY_CLASS, IMAGES, TOTAL, SECOND = "counts", "by_class", "images", "total", "second"
MEANS, WITHIN = "means", "within"
"""Names of tensors as they travel."""
SHARES_RIDGE = 1e-3
"""Added to the eigenvalues of the covariance that measures distances, in units of their mean."""
MIN_RIDGE = 1e-6
"""Minimum added to eigenvalues, for classes whose images are all alike: logits stay below 1e7."""
EIGENVALUE_ROUNDING = 2e-7
"""More than float32 rounding changes an eigenvalue of a covariance of vectors of norm 1."""
UNSEEN_CLASS_LOGIT = -1e7
"""Logit of a class of which nobody has a labelled image."""
UNSEEN_CLASS_GAP = 30.0
"""Where several answers are combined, the logit of a class that nobody has images of is taken to
lie this far below the lowest other logit of the image."""


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums over images with features f.

    counts: [C], images of each class. by_class: [C, d], sums of their f. images: number of all
    images, also of those whose class is not known. total: [d], sum of their f. second: [d, d], sum
    of their f f^T. Of unlabelled images alone, C is 0.
    """

    counts: Tensor
    by_class: Tensor
    images: float
    total: Tensor
    second: Tensor

    @classmethod
    def of(cls, labelled: Tensor, labels: Tensor, classes: int) -> Self:
        """Return the sums over features [n, d] with labels int64 [n]; label -1: class not known."""
        known, labels = labelled.double(), labels.to(labelled.device)
        by_class = known.new_zeros(classes, known.shape[1])
        by_class.index_add_(0, labels[labels >= 0], known[labels >= 0])
        return cls(
            torch.bincount(labels[labels >= 0].cpu(), minlength=classes).double(),
            by_class.cpu(),
            float(len(known)),
            known.sum(0).cpu(),
            (known.T @ known).cpu(),
        )

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(
            self.counts + other.counts,
            self.by_class + other.by_class,
            self.images + other.images,
            self.total + other.total,
            self.second + other.second,
        )

    def with_others(self, other: "Sums") -> "Sums":
        """Return the same with further images whose class is not known."""
        return replace(
            self,
            images=self.images + other.images,
            total=self.total + other.total,
            second=self.second + other.second,
        )

    def with_guesses(self, guesses: "Guesses") -> "Sums":
        """Return the same with the classes of those images as they were guessed."""
        return replace(
            self, counts=self.counts + guesses.counts, by_class=self.by_class + guesses.by_class
        )

    def to_params(self, rounded: bool = False, few: bool = False) -> Params:
        """Return the tensors that travel: float32, of the second moment the upper triangle.

        rounded: in place of the second moment the factor of `_rounded`, which cannot be added; few:
        that of few images. All of them are vectors, because matrices may travel as float16
        (`transport.precision`), which these sums must not.
        """
        moment = self.second - self._of_mean if rounded else self.second
        return {
            COUNTS: self.counts.long(),
            BY_CLASS: self.by_class.float().flatten(),
            IMAGES: torch.tensor([int(self.images)]),
            TOTAL: self.total.float(),
            **(factor_of(moment, self.images, few) if rounded else {SECOND: packed(moment)}),
        }

    @classmethod
    def from_params(cls, params: Params) -> Self:
        """Return the sums that `to_params` wrote."""
        total, rounded = params[TOTAL].double(), DEVIATIONS in params
        found = cls(
            params[COUNTS].double(),
            params[BY_CLASS].double().view(len(params[COUNTS]), len(total)),
            float(params[IMAGES]),
            total,
            scatter_of(params) if rounded else unpacked(params[SECOND], len(total)),
        )
        return replace(found, second=found.second + found._of_mean) if rounded else found

    @property
    def _of_mean(self) -> Tensor:
        """The second moment, [d, d], if all images were like their mean."""
        return torch.outer(self.total, self.total) / max(self.images, 1.0)

    @property
    def unexplained(self) -> Tensor:
        """sum f f^T - sum_c s_c s_c^T / n_c, [d, d]; for true sums no eigenvalue is negative.

        c runs over the classes, and all images whose class is not known as one more class.
        """
        counts, sums = self.by_group
        known = counts > 0
        roots = sums[known] / counts[known].sqrt()[:, None]
        return self.second - roots.T @ roots

    @property
    def by_group(self) -> tuple[Tensor, Tensor]:
        """Counts [C + 1] and sums of f [C + 1, d] by class; the last row: the class not known."""
        others = torch.tensor([self.images], dtype=torch.float64) - self.counts.sum()
        rest = self.total - self.by_class.sum(0)
        return torch.cat([self.counts, others]), torch.cat([self.by_class, rest[None]])


def sums_schema(classes: int, size: int, rounded: bool = False, few: bool = False) -> Schema:
    """Return the schema of `Sums.to_params` for C classes and d features."""
    triangle: Schema = {SECOND: ((size * (size + 1) // 2,), torch.float32)}
    return {
        COUNTS: ((classes,), torch.int64),
        BY_CLASS: ((classes * size,), torch.float32),
        IMAGES: ((1,), torch.int64),
        TOTAL: ((size,), torch.float32),
        **(factor_schema(size, few) if rounded else triangle),
    }


@dataclass(frozen=True, eq=False)
class Guesses:
    """Sums over unlabelled images with features f, whose classes are known by probability.

    counts: [C], the sum of each class's probabilities. by_class: [C, d], the sum of probability
    times f.
    """

    counts: Tensor
    by_class: Tensor

    @classmethod
    def of(cls, features: Tensor, answers: Tensor) -> Self:
        """Return the sums over features [n, d] with probabilities [n, C], rows summing to 1."""
        given = answers.double()
        return cls(given.sum(0).cpu(), (given.T @ features.double()).cpu())

    def __add__(self, other: "Guesses") -> "Guesses":
        return Guesses(self.counts + other.counts, self.by_class + other.by_class)

    def to_params(self) -> Params:
        """Return the tensors that travel: float32 vectors."""
        return {COUNTS: self.counts.float(), BY_CLASS: self.by_class.float().flatten()}

    @classmethod
    def from_params(cls, params: Params) -> Self:
        """Return the guesses that `to_params` wrote."""
        counts = params[COUNTS].double()
        return cls(counts, params[BY_CLASS].double().view(len(counts), -1))


def guesses_schema(classes: int, size: int) -> Schema:
    """Return the schema of `Guesses.to_params` for C classes and d features."""
    each = torch.float32
    return {COUNTS: ((classes,), each), BY_CLASS: ((classes * size,), each)}


Added = TypeVar("Added", Sums, Guesses)


def sum_of(every: Iterable[Added]) -> Added:
    """Return the sum of one or more, in their order, while holding one of them at a time."""
    return reduce(add, every)


def by_finding(sums: Added) -> list[Added]:
    """Return sums of 2F classes, without and with each of F findings, as F sums of two classes."""
    both = zip(sums.counts.view(-1, 2), sums.by_class.unflatten(0, (-1, 2)), strict=True)
    return [replace(sums, counts=counts, by_class=by_class) for counts, by_class in both]


def shares_of_all(apart: Tensor, covariance: Tensor) -> Tensor:
    """Return the share of all images that each class has, [C], at least 0, summing to 1.

    apart: [C, d], class means minus the mean of all images. covariance: [d, d], of all images. The
    result are the shares p under which the class means best explain the mean of all images: they
    minimise the norm of sum_c p_c apart_c, measured by the inverse covariance. The mean of few
    images is noisy and makes a long vector, which draws that class's share towards its share of the
    labelled images.
    """
    size = len(covariance)
    level = max(SHARES_RIDGE * float(covariance.trace()) / size, EIGENVALUE_ROUNDING)
    factor = torch.linalg.cholesky(covariance + level * torch.eye(size, dtype=torch.float64))
    among = apart @ torch.cholesky_solve(apart.T, factor)
    among = among + (1e-9 * among.trace() + 1e-12) * torch.eye(len(apart), dtype=torch.float64)
    chosen = torch.ones(len(apart), dtype=torch.bool)
    while True:  # a class whose share would be negative has none; at least one stays
        shares = torch.zeros(len(apart), dtype=torch.float64)
        ones = torch.ones(int(chosen.sum()), dtype=torch.float64)
        shares[chosen] = torch.linalg.solve(among[chosen][:, chosen], ones)
        shares = shares / shares.sum()
        if bool((shares >= 0).all()):
            return shares
        chosen &= shares > 0


@dataclass(frozen=True, eq=False)
class Classes:
    """What a head is computed from.

    counts: [C], images of each class: labelled ones, and others as far as guessed. means: [C, d];
    for a class without images the mean of the others. within: [d, d], covariance within classes,
    without negative eigenvalues. images: the number of images that this is of. noise: [C], the
    variance of each class mean in units of `within`, which is one divided by the number of images
    that it is the mean of, if these count equally; 0 for a class without images. found: its
    `spectrum` where it is known already, since it is the most expensive part.
    """

    counts: Tensor
    means: Tensor
    within: Tensor
    images: float
    noise: Tensor
    found: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(cls, sums: Sums) -> Self:
        """Return class means, and the covariance of all images around them.

        The share of all images that each class has is estimated (`shares_of_all`): where the class
        of each image is known, it is its share of the counts. Eigenvalues of the covariance that
        are negative after that are set to 0. At least one image must have a label.
        """
        known = sums.counts > 0
        means = sums.by_class / sums.counts.clamp_min(1)[:, None]
        middle = (sums.counts / sums.counts.sum()) @ means
        means = torch.where(known[:, None], means, middle)
        mean = sums.total / sums.images
        whole = sums.second / sums.images - torch.outer(mean, mean)
        share = sums.counts / sums.images
        if sums.counts.sum() != sums.images:
            share[known] = shares_of_all(means[known] - mean, whole)
        spread = means - share @ means
        left = whole - (spread * share[:, None]).T @ spread
        values, vectors = eigh(left)
        values = values.clamp_min(0)
        within = (vectors * values) @ vectors.T
        noise = noise_of(sums.counts)
        return cls(sums.counts, means, within, sums.images, noise, (values, vectors))

    @classmethod
    def none(cls, classes: int, size: int) -> Self:
        """Return the classes without any image; only `with_own` can make a head of them."""
        zeros = torch.zeros(classes, size, dtype=torch.float64)
        within = torch.zeros(size, size, dtype=torch.float64)
        return cls(zeros[:, 0], zeros, within, 0.0, zeros[:, 0])

    def with_guesses(self, guesses: Guesses) -> "Classes":
        """Return the same with unlabelled images added to the classes of their guesses.

        The means move; the covariance stays that of labelled images.
        """
        counts = self.counts + guesses.counts
        sums = self.counts[:, None] * self.means + guesses.by_class
        found = sums / counts.clamp_min(1)[:, None]
        means = torch.where(counts[:, None] > 0, found, self.means)
        return replace(self, counts=counts, means=means, noise=noise_of(counts))

    def with_own(self, features: Tensor, labels: Tensor, weight: float) -> "Classes":
        """Return the same with a site's labelled images counted `weight` times more, weight > 0.

        features: [n, d]. labels: int64 [n]. The means move; the covariance includes how far these
        images lie from the new means. The site's unlabelled images count as before.
        """
        own, classes = features.double(), len(self.counts)
        counts = torch.bincount(labels, minlength=classes).double()
        by_class = torch.zeros_like(self.means).index_add_(0, labels, own)
        both = self.counts + weight * counts
        sums = self.counts[:, None] * self.means + weight * by_class
        means = torch.where(both[:, None] > 0, sums / both.clamp_min(1e-12)[:, None], self.means)
        apart = own - means[labels]
        total = self.images + weight * len(own)
        # In place: each copy of [d, d] would take a third of the time of the product.
        within = (weight * apart.T @ apart).add_(self.images * self.within).div_(max(total, 1))
        noise = (self.counts.square() * self.noise + weight**2 * counts) / both.square()
        return Classes(both, means, within, total, torch.where(both > 0, noise, 0.0))

    @cached_property
    def spectrum(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues [d] of `within`, ascending and at least 0, and its eigenvectors [d, d]."""
        if self.found is not None:
            return self.found
        values, vectors = eigh(self.within)
        return values.clamp_min(0), vectors

    def level(self, ridge: float) -> float:
        """Return lambda times the mean eigenvalue, at least `MIN_RIDGE`."""
        return max(ridge * float(self.within.diagonal().mean()), MIN_RIDGE)

    def heads(self, ridges: Iterable[float]) -> tuple[Tensor, Tensor]:
        """Return linear heads, one for each lambda > 0: weights [L, C, d] and biases [L, C]."""
        values, vectors = self.spectrum
        apart = (self.means - self._middle) @ vectors
        found = []
        for ridge in ridges:
            inverse = 1 / (values + self.level(ridge))
            found.append(self._head((apart * inverse) @ vectors.T, float(values @ inverse)))
        return torch.stack([w for w, _ in found]), torch.stack([b for _, b in found])

    def head(self, ridge: float, dimensions: float | None = None) -> tuple[Tensor, Tensor]:
        """Return one linear head, weight [C, d] and bias [C], in a tenth of the time of `heads`.

        ridge: what is added to every eigenvalue, as returned by `level`. dimensions: tr(P W) of a
        covariance that is nearly the same; None: computed, which doubles the time.
        """
        factor = self._factor(ridge)
        weight = torch.cholesky_solve((self.means - self._middle).T, factor).T
        if dimensions is None:
            dimensions = self.dimensions(ridge)
        return self._head(weight, dimensions)

    def dimensions(self, ridge: float) -> float:
        """Return tr(P W), the number of dimensions that a ridge leaves, between 0 and d."""
        inverse = torch.cholesky_inverse(self._factor(ridge))
        return len(inverse) - ridge * float(inverse.trace())

    def _factor(self, ridge: float) -> Tensor:
        regular = self.within.clone()
        regular.diagonal().add_(ridge)
        factor: Tensor = torch.linalg.cholesky(regular)
        return factor

    @property
    def _middle(self) -> Tensor:
        known = self.counts > 0
        return self.means[known].sum(0) / known.sum().clamp_min(1)

    def _head(self, weight: Tensor, dimensions: float) -> tuple[Tensor, Tensor]:
        """Return weight and bias, without what the logits of all classes have in common.

        The noise of a mean makes m^T P m larger by tr(P W) times its variance on average, so that a
        class with few labelled images would be chosen too rarely. That is taken away (Moran and
        Murphy 1979).
        """
        known = self.counts > 0
        bias = (dimensions * self.noise - (weight * (self.means + self._middle)).sum(1)) / 2
        never = torch.full_like(bias, UNSEEN_CLASS_LOGIT)
        return torch.where(known[:, None], weight, 0.0), torch.where(known, bias, never)

    def along(self, directions: Tensor) -> "Classes":
        """Return the same of the features' coordinates along directions [r, d]."""
        within = directions @ self.within @ directions.T
        return replace(self, means=self.means @ directions.T, within=within, found=None)

    def to_params(self, rounded: bool = False) -> Params:
        """Return the tensors that travel: float32, of the covariance the upper triangle.

        rounded: in place of the triangle the factor of `_rounded`.
        """
        return {
            COUNTS: self.counts.float(),
            MEANS: self.means.float().flatten(),
            **(factor_of(self.within) if rounded else {WITHIN: packed(self.within)}),
            IMAGES: torch.tensor([int(self.images)]),
        }

    @classmethod
    def from_params(cls, params: Params) -> Self:
        """Return the classes that `to_params` wrote."""
        means = params[MEANS].double().view(len(params[COUNTS]), -1)
        rounded, counts = DEVIATIONS in params, params[COUNTS].double()
        within = scatter_of(params) if rounded else unpacked(params[WITHIN], means.shape[1])
        return cls(counts, means, within, float(params[IMAGES]), noise_of(counts))


def noise_of(counts: Tensor) -> Tensor:
    """Return the variance of each class mean in units of the covariance within classes, [C]."""
    return torch.where(counts > 0, 1 / counts.clamp_min(1e-12), 0.0)


def classes_schema(classes: int, size: int, rounded: bool = False) -> Schema:
    """Return the schema of `Classes.to_params`; rounded: along the leading directions."""
    triangle: Schema = {WITHIN: ((size * (size + 1) // 2,), torch.float32)}
    size = min(size, MOST_DIRECTIONS) if rounded else size
    return {
        COUNTS: ((classes,), torch.float32),
        MEANS: ((classes * size,), torch.float32),
        **(factor_schema(size) if rounded else triangle),
        IMAGES: ((1,), torch.int64),
    }


def raise_unseen_logits(logits: Tensor) -> Tensor:
    """Return logits [n, C]; those of unseen classes lie `UNSEEN_CLASS_GAP` below the others.

    Unseen is a class that nobody has images of.
    """
    never = logits <= UNSEEN_CLASS_LOGIT / 64  # it may have been divided by a temperature
    least = logits.masked_fill(never, torch.inf).amin(1, keepdim=True)
    return torch.where(never & least.isfinite(), least - UNSEEN_CLASS_GAP, logits)


def packed(square: Tensor) -> Tensor:
    """Return the upper triangle of a symmetric matrix [d, d], row by row, float32."""
    rows, columns = torch.triu_indices(*square.shape)
    return square[rows, columns].float()


def unpacked(triangle: Tensor, size: int) -> Tensor:
    """Return the symmetric matrix [d, d], float64, whose upper triangle `packed` returned."""
    rows, columns = torch.triu_indices(size, size)
    square = torch.zeros(size, size, dtype=torch.float64)
    square[rows, columns] = triangle.double()
    square[columns, rows] = triangle.double()
    return square
