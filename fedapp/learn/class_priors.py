"""Class mixes: how often each class occurs at a site, and what follows from it for an answer.

Sites that share p(x | y) differ in p(y) alone. A common model that is trained with each site's
logits + ln pi_k ("balanced softmax", Ren et al. 2020; logit adjustment, Menon et al. 2021) answers
as if all classes were equally frequent; a site multiplies that by its own pi_k.

A finding is two classes, without and with it, and has a mix of its own: counts, priors and mixes of
F findings are [F, 2], answers [n, F] of having each.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

ITERATIONS = 100
"""Of each EM here: the likelihoods are concave, the steps small after twenty."""
SMOOTHING = 0.3
"""Images of an even mix that count beside each unlabelled one."""
ESTIMATED = 3.0
"""Images of a site's mix as estimated from its unlabelled images, beside its labelled ones."""
LEAST_VARIANCE = 1e-4
"""Of the share of pairs that are of one class: as few sites cannot tell it more closely."""
FEW_ALIKE = 5.0
"""Strength of a Dirichlet distribution of mixes, in images, up to which sites are not alike."""


def class_mix(counts: Tensor, answers: Tensor) -> Tensor:
    """Estimate pi_k from labels or, where a site has none, from answers to its unlabelled images.

    counts: [C], labelled images of each class. answers: [n, C], n >= 0, rows sum to 1: those of a
    model for which all classes are equally frequent. Returns pi_k, float64 [C], above 0, sums to 1.

    With labels: their shares, one more image being spread evenly over the classes, so that none is
    ruled out. Without: EM for label shift (Saerens et al. 2002) on the answers, and `SMOOTHING` n
    such images. A weak model's answers are wrong in the same way for many images, so a few labels
    say more than EM does (docs/research/prior_shift.md).
    """
    if counts.ndim == 2:
        each = zip(counts, _both(answers), strict=True)
        return torch.stack([class_mix(own, its) for own, its in each])
    known = counts.double() + 1 / len(counts)
    if int(counts.sum()) or not len(answers):
        return known / known.sum()
    seen, even = answers.double(), SMOOTHING * len(answers) / len(counts)
    mix = seen.mean(0)
    for _ in range(ITERATIONS):
        mix = weighted(seen, mix).sum(0) + even
        mix /= mix.sum()
    return mix


def site_mix(counts: Tensor, answers: Tensor, prior: Tensor) -> Tensor:
    """Estimate pi_k from a site's labels, its answers and what the federation knows.

    counts, answers: as of `class_mix`; the answers are calibrated. prior: [C], what `mean_mix` says
    of all sites. Returns pi_k, float64 [C], above 0, sums to 1: the shares among the labels,
    `ESTIMATED` images of what EM says of the answers, the prior's images, and a hundredth of an
    image spread evenly. Without answers the prior's own shares stand for EM's.
    """
    if counts.ndim == 2:
        each = zip(counts, _both(answers), prior, strict=True)
        return torch.stack([site_mix(own, its, of) for own, its, of in each])
    classes = len(counts)
    even = torch.full((classes,), 1 / classes, dtype=torch.float64)
    estimate = (prior + 1e-9 * even) / (prior + 1e-9 * even).sum()
    if len(answers):
        estimate = class_mix(torch.zeros(classes), answers)
    mix = counts.double() + ESTIMATED * estimate + prior.double() + 0.01 * even
    return mix / mix.sum()


def alike(counts: Tensor) -> tuple[float, float, float, float, float]:
    """Return what a site adds to the sums of which `mean_mix_of_sums` is made.

    counts: [C], labelled images of each class at the site. b is their number where they are two or
    more, else 0; a is b times the probability that two of them, drawn without putting back, are of
    one class. Returns b, a, b^2, a^2, a b.
    """
    known = counts.double()
    b = float(known.sum())
    if b < 2:
        return 0.0, 0.0, 0.0, 0.0, 0.0
    a = float((known * (known - 1)).sum()) / (b - 1)
    return b, a, b * b, a * a, a * b


def mean_mix_of_sums(counts: Tensor, sums: Sequence[float]) -> Tensor:
    """Return what `mean_mix` estimates, from sums over sites alone, float64 [C].

    counts: [C], labelled images of each class at all sites. sums: over sites, of `alike`. Two
    images of one site are of one class with probability q = (s sum_c m_c^2 + 1) / (s + 1) under a
    Dirichlet distribution of strength s around the mean m. The share seen, sum a / sum b, is taken
    as normal around q, its variance by the differences between sites; the strength is the most
    likely one under the prior of `mean_mix`.
    """
    mean = counts.double() + 1
    mean = mean / mean.sum()
    b, a, b_square, a_square, cross = sums
    strengths = torch.logspace(-1, 3, 81, dtype=torch.float64)
    scores = -((strengths / FEW_ALIKE).log() ** 2) / 2
    if b:
        seen = a / b
        variance = (a_square - 2 * seen * cross + seen**2 * b_square) / b**2
        expected = (strengths * mean.square().sum() + 1) / (strengths + 1)
        scores = scores - (seen - expected) ** 2 / (2 * max(variance, LEAST_VARIANCE))
    return mean * (strengths[scores.argmax()] - FEW_ALIKE).clamp_min(0)


def mean_mix(counts: Tensor) -> Tensor:
    """Return the federation's mean class mix in images that it is worth to a site, float64 [C].

    counts: [K, C], labelled images of each class at each site. Mixes of sites are taken as drawn
    from a Dirichlet distribution around the mean of all: its strength s, in images, is the most
    likely one under a log-normal prior around `FEW_ALIKE`, and max(s - `FEW_ALIKE`, 0) is what the
    mean is worth. Mixes that differ much (s small) say nothing of each other.
    """
    known = counts.double()[counts.sum(1) > 0]
    mean = known.sum(0) + 1
    mean = mean / mean.sum()
    images = known.sum(1)
    strengths = torch.logspace(-1, 3, 81, dtype=torch.float64)

    def likelihood(s: Tensor) -> Tensor:
        seen = torch.lgamma(s * mean + known) - torch.lgamma(s * mean)
        return (torch.lgamma(s) - torch.lgamma(s + images)).sum() + seen.sum()

    scores = torch.stack([likelihood(s) for s in strengths])
    best = strengths[(scores - (strengths / FEW_ALIKE).log() ** 2 / 2).argmax()]
    return mean * (best - FEW_ALIKE).clamp_min(0)


def weighted(answers: Tensor, mix: Tensor) -> Tensor:
    """Return answers [n, C] times the class mix [C], each row summing to 1 again.

    Of findings, mix [F, 2], answers a [n, F] become p a / (p a + q (1 - a)), q and p a row of it.
    """
    if mix.ndim == 2:
        there, absent = answers.double() * mix[:, 1], (1 - answers.double()) * mix[:, 0]
        return there / (there + absent)
    products = answers.double() * mix
    return products / products.sum(1, keepdim=True)


def _both(answers: Tensor) -> Tensor:
    """Return answers of findings [n, F] as those of two classes each, [F, n, 2]."""
    return torch.stack([1 - answers, answers], 2).transpose(0, 1)


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
