"""Class mixes: how often each class occurs at a site, and how an answer depends on that.

The sites are assumed to share p(x | y) and to differ in p(y) only. A common model that is trained
on each site's logits + ln pi_k ("balanced softmax", Ren et al. 2020; logit adjustment, Menon et al.
2021) answers as if all classes were equally frequent; each site then multiplies this answer by its
own pi_k.

A finding counts as two classes, absent and present, with a mix of its own. For F findings, counts,
priors and mixes have the shape [F, 2], and answers are [n, F], the probability that each is
present.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

EM_ITERATIONS = 100
"""Iterations of EM. The likelihoods are concave; after twenty iterations the steps are small."""
EVEN_IMAGES_PER_IMAGE = 0.3
"""Strength of the even prior in `class_mix`: images spread evenly over the classes for each
unlabelled image.
"""
EM_ESTIMATE_IMAGES = 3.0
"""Images that the EM estimate from a site's unlabelled images counts as, beside the labelled
images.
"""
MIN_SHARE_VARIANCE = 1e-4
"""Least variance of the observed share of same-class pairs. A few sites cannot determine that share
more precisely.
"""
UNINFORMATIVE_STRENGTH = 5.0
"""Strength, in images, of a Dirichlet distribution of class mixes up to which the mixes differ so
much that their mean tells a site nothing.
"""


def class_mix(counts: Tensor, answers: Tensor) -> Tensor:
    """Estimate the class mix pi_k of a site from its labels or, without labels, from answers.

    counts: [C], labelled images of each class.
    answers: [n, C], n >= 0, rows sum to 1: what a model that treats all classes as equally frequent
    answers to the site's unlabelled images.
    Returns pi_k, float64 [C], every entry above 0, sum 1.

    With labels, pi_k is their relative frequencies after one more image was spread evenly over the
    classes, so that no class is ruled out. Without labels it is estimated by EM for label shift
    (Saerens et al. 2002) on the answers, together with `EVEN_IMAGES_PER_IMAGE` n images spread
    evenly. A weak model makes the same mistake on many images, so a few labels tell more than EM
    does (docs/results/prior_shift.md).
    """
    if counts.ndim == 2:
        each = zip(counts, _as_two_classes(answers), strict=True)
        return torch.stack([class_mix(own, its) for own, its in each])
    known = counts.double() + 1 / len(counts)
    if int(counts.sum()) or not len(answers):
        return known / known.sum()
    even = torch.full_like(known, EVEN_IMAGES_PER_IMAGE * len(answers) / len(counts))
    return mixture_weights(answers, even, answers.double().mean(0))


def site_mix(counts: Tensor, answers: Tensor, prior: Tensor) -> Tensor:
    """Estimate pi_k from a site's labels, its answers and what the federation knows.

    counts, answers: as for `class_mix`; the answers are calibrated.
    prior: [C], what `mean_mix` returns for all sites.
    Returns pi_k, float64 [C], every entry above 0, sum 1. It is the sum of four counts of images,
    normalised: the labels, `EM_ESTIMATE_IMAGES` images distributed as EM estimates from the
    answers, the prior's images, and a hundredth of an image spread evenly. Without answers, the
    prior's relative frequencies replace the EM estimate.
    """
    if counts.ndim == 2:
        each = zip(counts, _as_two_classes(answers), prior, strict=True)
        return torch.stack([site_mix(own, its, of) for own, its, of in each])
    classes = len(counts)
    even = torch.full((classes,), 1 / classes, dtype=torch.float64)
    estimate = (prior + 1e-9 * even) / (prior + 1e-9 * even).sum()
    if len(answers):
        estimate = class_mix(torch.zeros(classes), answers)
    mix = counts.double() + EM_ESTIMATE_IMAGES * estimate + prior.double() + 0.01 * even
    return mix / mix.sum()


def same_class_pair_sums(counts: Tensor) -> tuple[float, float, float, float, float]:
    """Return what one site adds to the sums from which `mean_mix_of_sums` is computed.

    counts: [C], labelled images of each class at the site. With b the number of labelled images, in
        thousands (0 where there is only one), and a = b times the probability that two of them,
        drawn without replacement, are of one class, the result is (b, a, b^2, a^2, a b).
    """
    known = counts.double()
    images = float(known.sum())
    if images < 2:
        return 0.0, 0.0, 0.0, 0.0, 0.0
    b = images / 1000  # so that the squares of a million images fit in a masked sum
    a = b * float((known * (known - 1)).sum()) / (images * (images - 1))
    return b, a, b * b, a * a, a * b


def mean_mix_of_sums(counts: Tensor, sums: Sequence[float]) -> Tensor:
    """Return what `mean_mix` estimates, float64 [C], from sums over the sites alone.

    counts: [C], labelled images of each class at all sites together.
    sums: the sum over the sites of what `same_class_pair_sums` returns.

    The sites' mixes are modelled as drawn from a Dirichlet distribution of strength s around the
    mean m. Two images of one site are then of the same class with probability q = (s sum_c m_c^2 +
    1) / (s + 1). The observed share, sum a / sum b, is modelled as normal around q, with a variance
    that is estimated from the differences between the sites. The strength returned is the most
    likely one under the prior of `mean_mix`.
    """
    mean = counts.double() + 1
    mean = mean / mean.sum()
    b, a, b_square, a_square, cross = sums
    strengths = torch.logspace(-1, 3, 81, dtype=torch.float64)
    scores = -((strengths / UNINFORMATIVE_STRENGTH).log() ** 2) / 2
    if b:
        seen = a / b
        variance = (a_square - 2 * seen * cross + seen**2 * b_square) / b**2
        expected = (strengths * mean.square().sum() + 1) / (strengths + 1)
        scores = scores - (seen - expected) ** 2 / (2 * max(variance, MIN_SHARE_VARIANCE))
    return mean * (strengths[scores.argmax()] - UNINFORMATIVE_STRENGTH).clamp_min(0)


def mean_mix(counts: Tensor) -> Tensor:
    """Return the federation's mean class mix times the images it is worth to a site, float64 [C].

    counts: [K, C], labelled images of each class at each site.

    The mixes of the sites are modelled as drawn from a Dirichlet distribution around their mean.
    Its strength s, in images, is the most likely one under a log-normal prior around
    `UNINFORMATIVE_STRENGTH`. The mean is worth max(s - `UNINFORMATIVE_STRENGTH`, 0) images: where
    mixes differ much (s is small), one site's mix tells nothing about another's.
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
    best = strengths[(scores - (strengths / UNINFORMATIVE_STRENGTH).log() ** 2 / 2).argmax()]
    return mean * (best - UNINFORMATIVE_STRENGTH).clamp_min(0)


def reweighted(answers: Tensor, mix: Tensor) -> Tensor:
    """Return answers [n, C] times the class mix [C], each row normalised to sum 1.

    For findings, mix is [F, 2] with rows (q, p), and an answer a in [n, F] becomes p a / (p a + q
    (1 - a)).
    """
    if mix.ndim == 2:
        there, absent = answers.double() * mix[:, 1], (1 - answers.double()) * mix[:, 0]
        return there / (there + absent)
    products = answers.double() * mix
    return products / products.sum(1, keepdim=True)


def _as_two_classes(answers: Tensor) -> Tensor:
    """Return answers to findings, [n, F], as answers of two classes for each finding, [F, n, 2]."""
    return torch.stack([1 - answers, answers], 2).transpose(0, 1)


def mean_answer(answers: Sequence[Tensor], weights: Tensor) -> Tensor:
    """Return the weighted mean of M answers, each [n, C]. weights: [M], in the same order."""
    return torch.einsum("m,mnc->nc", weights, torch.stack(list(answers)))


def mixture_weights(
    likelihoods: Tensor, pseudo_counts: Tensor, start: Tensor | None = None
) -> Tensor:
    """Return how far to trust each of M answers, estimated by EM: float64 [M], >= 0, sum 1.

    likelihoods: [n, M], n >= 0: the probability that each answer gave to the correct class of an
        image.
    pseudo_counts: [M], above 0: images that count for each answer a priori; without images they
        alone decide.
    start: float64 [M], no entry below 0, sum 1: where EM begins. None: at the pseudo-counts,
        normalised.

    The result is the mode of the posterior of mixture weights under the Dirichlet prior that the
    pseudo-counts define.
    """
    prior = pseudo_counts.double().numpy()
    weights = prior / prior.sum() if start is None else start.numpy()
    # An image may have likelihood 0 everywhere. NumPy: five times as fast as torch for few numbers.
    seen = likelihoods.double().clamp_min(1e-12).numpy()
    for _ in range(EM_ITERATIONS if len(seen) and len(prior) > 1 else 0):
        weights = prior + weights * ((1 / (seen @ weights)) @ seen)
        weights = weights / weights.sum()
    return torch.from_numpy(weights)
