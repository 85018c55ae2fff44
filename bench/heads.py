"""Heads that other papers make over a frozen network's features, as formulas.

A head is a function from features [n, d] to scores [n, C]; the greatest is the answer. Features and
sums are float64. What a head says is of images whose classes are as frequent as `Head.prior` says.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from sklearn.linear_model import LogisticRegression

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
Known = tuple[Array, Labels]
"""Features [n, d] and labels [n] of one site."""
UNSEEN = -1e9
"""Score of a class of which nobody has an image."""
TINY = 1e-12
EM_STEPS = 8
"""As often `one_round` guesses the classes of images without labels."""


@dataclass(frozen=True)
class Head:
    """scores: [n, d] -> [n, C]. prior: [C], shares of the classes of which the scores are."""

    scores: Callable[[Array], Array]
    prior: Array

    @classmethod
    def linear(cls, weight: Array, bias: Array, prior: Array) -> "Head":
        """Return the head with scores weight x + bias. weight: [C, d]. bias: [C]."""
        return cls(lambda x: np.asarray(x @ weight.T + bias), prior)


@dataclass(frozen=True)
class Moments:
    """Sums over labelled images, by class: counts [C], of features [C, d], of squares [C, d, d]."""

    counts: Array
    first: Array
    second: Array

    @classmethod
    def of(cls, known: Known, classes: int) -> "Moments":
        """Return a site's sums."""
        x, y = known
        each = [x[y == c] for c in range(classes)]
        counts = np.array([float(len(of)) for of in each])
        return cls(counts, np.stack([o.sum(0) for o in each]), np.stack([o.T @ o for o in each]))

    @classmethod
    def expected(cls, x: Array, shares: Array) -> "Moments":
        """Return sums over images of which each counts for every class by its share, [n, C]."""
        return cls(shares.sum(0), shares.T @ x, np.stack([(x.T * of) @ x for of in shares.T]))

    def __add__(self, other: "Moments") -> "Moments":
        return Moments(
            self.counts + other.counts, self.first + other.first, self.second + other.second
        )

    @cached_property
    def means(self) -> Array:
        """The classes' means, [C, d]; 0 of a class without images."""
        return self.first / np.maximum(self.counts, 1)[:, None]

    @cached_property
    def prior(self) -> Array:
        """The classes' shares of the labels, after one more image was spread evenly."""
        return shares(self.counts)

    def scatter(self, c: int) -> Array:
        """Return sum (x - m_c) (x - m_c)^T over class c, [d, d]."""
        return np.asarray(self.second[c] - self.counts[c] * np.outer(self.means[c], self.means[c]))


def shares(counts: Array) -> Array:
    """Return the shares that counts [C] say, after one more image was spread evenly."""
    known = counts + 1 / len(counts)
    return np.asarray(known / known.sum())


def shares_of(labels: Labels, classes: int) -> Array:
    """Return the same of labels [n]."""
    return shares(np.bincount(labels, minlength=classes).astype(np.float64))


# --- AFL ------------------------------------------------------------------------------------------


def ridge(known: Known, classes: int, level: float) -> Head:
    """AFL's head (He et al. 2025): W = (X^T X + r I)^-1 X^T Y over the images of all sites.

    level: r as a share of the mean eigenvalue of X^T X.
    """
    x, y = known
    gram, target = x.T @ x, x.T @ np.eye(classes)[y]
    weight = _solved(gram, level * gram.trace() / len(gram), target)
    return Head.linear(weight.T, np.zeros(classes), shares_of(y, classes))


def absolute_aggregation(sites: Sequence[Known], classes: int, r: float) -> Array:
    """Return AFL's weights [d, C] as its server makes them of the sites' own ridge solutions.

    A site sends W_k = C_k^-1 X_k^T Y_k, C_k = X_k^T X_k + r I. Added up two by two, W = (C_1 +
    C_2)^-1 (C_1 W_1 + C_2 W_2). In the end the K - 1 ridges too many are taken away.
    """

    def local(known: Known) -> tuple[Array, Array]:
        regular = known[0].T @ known[0] + r * np.eye(known[0].shape[1])
        return regular, _solved(regular, 0.0, known[0].T @ np.eye(classes)[known[1]])

    def joined(one: tuple[Array, Array], two: tuple[Array, Array]) -> tuple[Array, Array]:
        (a, v), (b, w) = one, two
        return a + b, _solved(a + b, 0.0, a @ v + b @ w)

    regular, weight = reduce(joined, map(local, sites))
    once = regular - (len(sites) - 1) * r * np.eye(len(regular))
    return _solved(once, 0.0, regular @ weight)


# --- FedCGS and GH-OFL ----------------------------------------------------------------------------


def fedcgs(moments: Moments, level: float) -> Head:
    """FedCGS (Guan et al. 2025): w_c = S^-1 m_c, b_c = ln p_c - m_c^T S^-1 m_c / 2.

    S: the covariance of all images, plus `level` times its mean eigenvalue. p_c: share of labels.
    """
    n = moments.counts.sum()
    mean = moments.first.sum(0) / n
    spread = (moments.second.sum(0) - n * np.outer(mean, mean)) / max(n - 1, 1)
    return _gaussian(moments, spread, level * spread.trace() / len(spread))


def lda(moments: Moments, shrinkage: float) -> Head:
    """GH-LDA (Turazza et al. 2026): the same with the covariance within classes, shrunken.

    S = (1 - s) S_w + s mean(eigenvalues of S_w) I.
    """
    within = reduce(add, map(moments.scatter, range(len(moments.counts)))) / moments.counts.sum()
    level = shrinkage * within.trace() / len(within)
    return _gaussian(moments, (1 - shrinkage) * within, level)


def lda_em(
    moments: Moments, unlabelled: Iterable[tuple[Array, Array]], shrinkage: float, weight: float
) -> Head:
    """The same, of images without labels too, by EM (Dempster et al. 1977): nobody published it.

    unlabelled: by site, their features [n, d] and the mix of its labels [C], by which the site
    multiplies what the head says. Such an image counts as `weight` labelled ones.
    """
    head = lda(moments, shrinkage)
    every = list(unlabelled)
    for _ in range(EM_STEPS):
        total = moments
        for x, mix in every:
            said = softmax(head.scores(x) + np.log(mix) - np.log(head.prior))
            total = total + Moments.expected(x, weight * said)
        head = lda(total, shrinkage)
    return head


def naive_bayes(moments: Moments, smoothing: float) -> Head:
    """GH-NBdiag: Gaussian classes with a variance for each feature and class.

    To each variance `smoothing` times the mean of all variances is added.
    """
    counts = np.maximum(moments.counts, 1)[:, None]
    squares = np.stack([second.diagonal() for second in moments.second]) / counts
    var = np.maximum(squares - moments.means**2, 0)
    var = var + smoothing * var[moments.counts > 0].mean() + TINY
    const = np.log(moments.prior) - (moments.means**2 / var + np.log(var)).sum(1) / 2

    def scores(x: Array) -> Array:
        return _masked(x @ (moments.means / var).T - x**2 @ (0.5 / var).T + const, moments)

    return Head(scores, moments.prior)


def qda(moments: Moments, shrinkage: float) -> Head:
    """GH-QDA: Gaussian classes, each with a covariance of its own, shrunken as for `lda`."""
    factors: list[tuple[Array, float]] = []
    for c, n in enumerate(moments.counts.tolist()):
        own = moments.scatter(c) / max(n, 1)
        level = shrinkage * own.trace() / len(own) + TINY
        factor = np.linalg.cholesky((1 - shrinkage) * own + level * np.eye(len(own)))
        factors.append((factor, float(np.log(factor.diagonal()).sum())))

    def scores(x: Array) -> Array:
        found = []
        for (factor, logs), mean, share in zip(
            factors, moments.means, moments.prior.tolist(), strict=True
        ):
            apart = solve_triangular(factor, (x - mean).T, lower=True)
            found.append(np.log(share) - (apart**2).sum(0) / 2 - logs)
        return _masked(np.stack(found, 1), moments)

    return Head(scores, moments.prior)


def _gaussian(moments: Moments, spread: Array, level: float) -> Head:
    """Return Gaussian classes of one shape: linear scores."""
    middle = moments.first.sum(0) / moments.counts.sum()
    apart = moments.means - middle  # the same answers, and better rounding
    weight = _solved(spread, level, apart.T).T
    bias = np.log(moments.prior) - (weight * (moments.means + middle)).sum(1) / 2
    never = moments.counts == 0
    weight[never], bias[never] = 0, UNSEEN
    return Head.linear(weight, bias, moments.prior)


def _masked(scores: Array, moments: Moments) -> Array:
    return np.where(moments.counts > 0, scores, UNSEEN)


def _solved(square: Array, level: float, right: Array) -> Array:
    """Return (square + level I)^-1 right."""
    factor = cho_factor(square + (level + TINY) * np.eye(len(square)))
    return np.asarray(cho_solve(factor, right))


# --- heads that are trained -----------------------------------------------------------------------


def logistic(known: Known, classes: int, c: float) -> Head:
    """Return a logistic regression. c: the inverse strength of its penalty, as scikit-learn's C."""
    x, y = known
    prior = shares_of(y, classes)
    there = np.unique(y)
    weight, bias = np.zeros((classes, x.shape[1])), np.full(classes, UNSEEN)
    bias[there] = 0.0
    if len(there) > 1:
        fitted = LogisticRegression(C=c, max_iter=300).fit(x, y)
        two = len(there) == 2  # scikit-learn then has one row of weights
        weight[there] = np.concatenate([-fitted.coef_, fitted.coef_]) / 2 if two else fitted.coef_
        both = np.concatenate([-fitted.intercept_, fitted.intercept_]) / 2
        bias[there] = both if two else fitted.intercept_
    return Head.linear(weight, bias, prior)


def fedavg(sites: Iterable[Known], classes: int, rate: float, rounds: int, steps: int) -> Head:
    """FedAvg of a head that learns on logits + ln(a site's own class mix), as if mixes were even.

    Each round every site takes `steps` steps down the gradient of all its labelled images.
    """
    every = [(x, y, np.log(shares_of(y, classes))) for x, y in sites]
    every = [one for one in every if len(one[1])]
    total = sum(len(y) for _, y, _ in every)
    size = every[0][0].shape[1]
    common = np.zeros((size + 1, classes))
    for _ in range(rounds):
        added = np.zeros_like(common)
        for x, y, mix in every:
            own, truth = common.copy(), np.eye(classes)[y]
            for _ in range(steps):
                said = softmax(x @ own[:-1] + own[-1] + mix) - truth
                own[:-1] -= rate * (x.T @ said) / len(y)
                own[-1] -= rate * said.mean(0)
            added += len(y) / total * own
        common = added
    return Head.linear(common[:-1].T, common[-1], np.full(classes, 1 / classes))


def softmax(logits: Array) -> Array:
    """Return probabilities [n, C]."""
    raised = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(raised / raised.sum(1, keepdims=True))


def times_mix(head: Head, scores: Array, temperature: float, mix: Array) -> Labels:
    """Return the answers [n] to scores [n, C] / temperature, for another mix of classes [C]."""
    found: Labels = (scores / temperature + np.log(mix) - np.log(head.prior)).argmax(1)
    return found
