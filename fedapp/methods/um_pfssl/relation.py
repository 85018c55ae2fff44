"""Relation of a site to a peer's model, and what follows from it (paper, Eqs. 11-14, Alg. 3)."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from fedapp.learn.uncertainty import entropy
from fedapp.protocol.messages import ScoredRef

CorrVariant = Literal["published", "preprint", "mutual_information"]
LabelVariant = Literal["published", "mutual_information"]
Metric = Literal["both", "entropy", "accuracy"]

PREPRINT_FLOOR = 1e-3
"""Smallest normalised entropy in the preprint's ratio, so that it is at most 1000."""


MAX_RELATION = 1 / PREPRINT_FLOOR
"""Largest Corr of any variant; the smallest is 0."""


def certainty(probabilities: Tensor, variant: CorrVariant) -> float:
    """How sure the peer is of a site's unlabelled images.

    probabilities: [n, C], rows sum to 1, n >= 1.

    - published (Eqs. 12, 14): 1 - mean_x H / ln C, in [0, 1].
    - preprint (its Eq. 13): 1 / (mean_x H / ln C), in [1, 1 / PREPRINT_FLOOR].
    - mutual_information: (H(mean_x P) - mean_x H(P)) / ln C, in [0, 1]; sure on every image *and*
      different answers for different images. A peer that gives one answer to all scores 0.

    With one class ln C = 0 and nothing is uncertain: 1, the preprint's cap, and 0.
    """
    max_entropy = math.log(probabilities.shape[1])
    mean = entropy(probabilities.double()).mean().item()
    normalised = min(mean / max_entropy, 1.0) if max_entropy else 0.0
    if variant == "published":
        return 1.0 - normalised
    if variant == "preprint":
        return 1.0 / max(normalised, PREPRINT_FLOOR)
    if not max_entropy:
        return 0.0
    marginal = entropy(probabilities.double().mean(0)).item()
    return max(marginal - mean, 0.0) / max_entropy


def relation(mu: float, sure: float | None, accuracy: float | None, metric: Metric) -> float:
    """Corr(k|j) = (1 - mu) certainty + mu Acc(D_s; w_j) (Eq. 13).

    sure is None at a site without unlabelled images, accuracy is None at one without labels; then
    mu is 1 or 0 and the formula does not need them. Table III's single terms (`entropy`,
    `accuracy`) fall back on the other term where their own is undefined; with neither, 0.
    """
    if sure is None or accuracy is None:
        known = accuracy if sure is None else sure
        return 0.0 if known is None else known
    if metric == "entropy":
        return sure
    if metric == "accuracy":
        return accuracy
    return (1.0 - mu) * sure + mu * accuracy


def ranked(helpers: Sequence[ScoredRef]) -> tuple[ScoredRef, ...]:
    """Most related first; equal scores by site number, so that the order is always the same."""
    return tuple(sorted(helpers, key=lambda h: (-h.score, h.model.site)))


def admit(
    helpers: Sequence[ScoredRef], newcomers: Sequence[ScoredRef], places: int, num_replaced: int
) -> tuple[ScoredRef, ...]:
    """ReplaceHelper (Alg. 3): the list after the newcomers were tried, most related first.

    helpers: the list without the site itself, at most `places` long. Its `num_replaced` lowest are
    up for replacement; their places and the free ones go to the best of them and the newcomers.
    A newcomer must be strictly better than the helper it replaces.
    """
    order = ranked(helpers)
    safe = order[: max(len(order) - num_replaced, 0)]
    contested = (*order[len(safe) :], *ranked(newcomers))
    best = sorted(contested, key=lambda h: -h.score)  # stable: incumbents win ties
    return ranked((*safe, *best[: places - len(safe)]))


def least_uncertain(probabilities: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Pseudo-labels (Eq. 11): each image's P from the helper with the lowest entropy there.

    probabilities: one [n, C] per helper, at least one. Returns (soft labels [n, C], helper index
    int64 [n]); equal entropies go to the earlier helper.
    """
    stacked = torch.stack(tuple(probabilities))
    chosen = entropy(stacked).argmin(0)
    return stacked[chosen, torch.arange(stacked.shape[1])], chosen


def most_informative(probabilities: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Pseudo-labels, ours: each image's P from the helper whose answer there tells most.

    That is the highest KL(P(y|x) || mean_x P), whose mean over x is the helper's mutual
    information (`certainty`): an answer that the helper gives to every image tells nothing, however
    sure it is. Arguments, result and ties as `least_uncertain`.
    """
    stacked = torch.stack(tuple(probabilities)).double()
    prior = stacked.mean(1, keepdim=True)
    told = torch.special.xlogy(stacked, stacked) - torch.special.xlogy(stacked, prior)
    chosen = told.sum(-1).argmax(0)
    return torch.stack(tuple(probabilities))[chosen, torch.arange(stacked.shape[1])], chosen
