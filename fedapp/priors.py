"""Class mixes: how often each class occurs at a site, and what follows from it for an answer.

Sites that share p(x | y) differ in p(y) alone. A common model that is trained with each site's
logits + ln pi_k ("balanced softmax", Ren et al. 2020; logit adjustment, Menon et al. 2021) answers
as if all classes were equally frequent; a site multiplies that by its own pi_k.
"""

from torch import Tensor

ITERATIONS = 100
"""Of each EM here: the likelihoods are concave, the steps small after twenty."""


def class_mix(counts: Tensor, answers: Tensor) -> Tensor:
    """Estimate pi_k from labels and, by EM, from answers to unlabelled images.

    counts: [C], labelled images of each class. answers: [n, C], n >= 0, rows sum to 1: those of a
    model for which all classes are equally frequent. Returns pi_k, float64 [C], above 0, sums to 1.

    EM for label shift (Saerens et al. 2002) with the labelled counts held fixed, and one more image
    spread evenly over the classes, so that no class is ruled out.
    """
    known = counts.double() + 1 / len(counts)
    seen = answers.double()
    mix = (known + seen.sum(0)) / (known.sum() + len(seen))
    for _ in range(ITERATIONS if len(seen) else 0):
        mix = (known + weighted(seen, mix).sum(0)) / (known.sum() + len(seen))
    return mix


def weighted(answers: Tensor, mix: Tensor) -> Tensor:
    """Return answers [n, C] times the class mix [C], each row summing to 1 again."""
    products = answers.double() * mix
    return products / products.sum(1, keepdim=True)


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
