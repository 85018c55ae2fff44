"""Class mixes: how often each class occurs at a site, and what follows from it for an answer.

Sites that share p(x | y) differ in p(y) alone. A common model that is trained with each site's
logits + ln pi_k ("balanced softmax", Ren et al. 2020; logit adjustment, Menon et al. 2021) answers
as if all classes were equally frequent; a site multiplies that by its own pi_k.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

ITERATIONS = 100
"""Of each EM here: the likelihoods are concave, the steps small after twenty."""
SMOOTHING = 0.3
"""Images of an even mix that count beside each unlabelled one."""


def class_mix(counts: Tensor, answers: Tensor) -> Tensor:
    """Estimate pi_k from labels or, where a site has none, from answers to its unlabelled images.

    counts: [C], labelled images of each class. answers: [n, C], n >= 0, rows sum to 1: those of a
    model for which all classes are equally frequent. Returns pi_k, float64 [C], above 0, sums to 1.

    With labels: their shares, one more image being spread evenly over the classes, so that none is
    ruled out. Without: EM for label shift (Saerens et al. 2002) on the answers, and `SMOOTHING` n
    such images. A weak model's answers are wrong in the same way for many images, so a few labels
    say more than EM does (docs/research/prior_shift.md).
    """
    known = counts.double() + 1 / len(counts)
    if int(counts.sum()) or not len(answers):
        return known / known.sum()
    seen, even = answers.double(), SMOOTHING * len(answers) / len(counts)
    mix = seen.mean(0)
    for _ in range(ITERATIONS):
        mix = weighted(seen, mix).sum(0) + even
        mix /= mix.sum()
    return mix


def weighted(answers: Tensor, mix: Tensor) -> Tensor:
    """Return answers [n, C] times the class mix [C], each row summing to 1 again."""
    products = answers.double() * mix
    return products / products.sum(1, keepdim=True)


def mixed(answers: Sequence[Tensor], weights: Tensor) -> Tensor:
    """Return the weighted mean of M answers [n, C]: weights [M], in the same order."""
    return torch.einsum("m,mnc->nc", weights, torch.stack(list(answers)))


def mixture_weights(likelihoods: Tensor, pseudo_counts: Tensor) -> Tensor:
    """Return how far to trust each of M answers, by EM: float64 [M], >= 0, sums to 1.

    likelihoods: [n, M], n >= 0: the probability that each answer gave to the right class of an
    image. pseudo_counts: [M], above 0: images that count for each answer beforehand; without images
    they alone decide. The mode of a mixture's weights under that Dirichlet prior.
    """
    prior = pseudo_counts.double()
    weights = prior / prior.sum()
    seen = likelihoods.double().clamp_min(1e-12)  # all may have missed an image: it says nothing
    for _ in range(ITERATIONS if len(seen) else 0):
        weights = (prior + weighted(seen, weights).sum(0)) / (prior.sum() + len(seen))
    return weights
