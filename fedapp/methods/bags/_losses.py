"""Losses for bags whose class proportions are known while the labels of their images are not.

Notation: a mini-batch of n inputs, C classes, and the M bags of one site. Bag m holds a share
pibar_m of the site's inputs, and its classes have the proportions Pi_m; Pi is [M, C], its rows sum
to 1; a row of zeros is a bag without inputs. pi, [C], above 0, sums to 1: the class frequencies for
which the model shall answer.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedapp.learn.networks.base import Network

MIN_PSEUDO_LABEL_CONFIDENCE = 0.4
"""Minimum probability of a label that FedPL accepts from the network itself."""
MAX_ROUNDING_ERROR = 1e-12
"""Differences of two float64 numbers near 1 below this are rounding."""
MIN_PROBABILITY = 1e-7
"""Smaller probabilities are raised to this, so that their logarithm stays finite."""
VAT_PROBE_LENGTH = 1e-3
"""Length of VAT's first step. 1e-6 would be lost in the rounding of float32
(docs/research/bags.md)."""


def transition(proportions: Tensor, shares: Tensor, prior: Tensor) -> Tensor:
    """Return diag(pibar) Pi diag(1 / pi), float64 [M, C] (FedUL, Theorem 1).

    proportions: Pi. shares: pibar, [M]. prior: pi.
    """
    return shares.double()[:, None] * proportions.double() / prior.double()


def bag_posterior(answers: Tensor, matrix: Tensor) -> Tensor:
    """Return Q = P(bag | x), [n, M], rows sum to 1 (FedUL, Theorem 1).

    answers: eta = P(y | x) [n, C] where classes occur as pi says. matrix: `transition` [M, C].
    Where eta is 0 for every class of the bags, so is Q.
    """
    raw = answers @ matrix.to(answers).T
    return raw / raw.sum(1, keepdim=True).clamp_min(torch.finfo(raw.dtype).tiny)


def bag_loss(logits: Tensor, bag: Tensor, matrix: Tensor, double_softmax: bool = False) -> Tensor:
    """Return the mean of -ln Q_m, with m each input's bag: a proper loss for P(y | x).

    logits: [n, C], of P(y | x). bag: int64 [n], no bag of zeros. double_softmax: use Q as logits,
    as the authors' code does; then the minimum is not the true Q.
    """
    if double_softmax:
        return F.cross_entropy(bag_posterior(torch.softmax(logits, 1), matrix), bag)
    log_answers, columns = F.log_softmax(logits, 1), matrix.sum(0)
    terms = log_answers + matrix.log().to(logits)[bag]
    # Where the columns sum to 1, so do the terms of all bags. Left out, it is exactly cross entropy
    # when every bag is a class.
    even = bool((columns - 1).abs().max() < MAX_ROUNDING_ERROR)
    total = 0 if even else torch.logsumexp(log_answers + columns.log().to(logits), 1)
    return (total - torch.logsumexp(terms, 1)).mean()


def prevailing_classes(proportions: Tensor, shares: Tensor) -> Tensor:
    """Return the class that prevails in each bag, int64 [M].

    That is arg max_k Pi_mk / sum_l pibar_l Pi_lk, so relative to the site's own mix: where most
    images of a site are of two classes, one of these would be the most frequent class of every bag.
    With an even mix it is the most frequent class. proportions: Pi. shares: pibar, [M].
    """
    known = proportions.double()
    mix = shares.double() @ known
    return (known / mix.where(mix > 0, 1)).argmax(1)


def proportion_loss(logits: Tensor, proportions: Tensor) -> Tensor:
    """Return -sum_k pi_k ln mean_x p_k(x): learning from label proportions, of one bag.

    logits: [n, C], n >= 1, of the bag's inputs. proportions: [C], the bag's. The least value is the
    proportions' entropy, where the mean answer equals them.
    """
    mean = torch.softmax(logits, 1).mean(0).clamp_min(MIN_PROBABILITY)
    return -(proportions.to(mean) * mean.log()).sum()


def adversarial_loss(
    model: Network, inputs: Tensor, radius: float, start: Tensor, tiny: float = VAT_PROBE_LENGTH
) -> Tensor:
    """Return mean KL(p(x) || p(x + r)), with r the worst step of length `radius`.

    This is VAT (Miyato 2019). inputs: normalised [n, ...]. start: a random direction for each
    input; one power iteration with steps of length `tiny` finds r. No gradient flows through p(x).
    All passes use no dropout, and batch norm with the inputs' own statistics, which are not kept.
    So the loss is 0 where r is 0.
    """
    with frozen_randomness(model):
        return _adversarial(model, inputs, radius, start, tiny)


def _adversarial(
    model: Network, inputs: Tensor, radius: float, start: Tensor, tiny: float
) -> Tensor:
    with torch.no_grad():
        wanted = torch.softmax(model(inputs), 1)

    def divergence(step: Tensor) -> Tensor:
        answers = F.log_softmax(model(inputs + step), 1)
        return F.kl_div(answers, wanted, reduction="batchmean")

    step = (tiny * _unit(start)).requires_grad_()
    [gradient] = torch.autograd.grad(divergence(step), step)
    return divergence(radius * _unit(gradient))


@contextmanager
def frozen_randomness(model: nn.Module) -> Iterator[None]:
    """Turn off dropout and the recording of batch-norm statistics until the block ends."""
    dropouts = [m for m in model.modules() if isinstance(m, nn.modules.dropout._DropoutNd)]
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    before = [m.training for m in dropouts], [m.track_running_stats for m in norms]
    for dropout in dropouts:
        dropout.training = False
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for dropout, training in zip(dropouts, before[0], strict=True):
            dropout.training = training
        for norm, tracking in zip(norms, before[1], strict=True):
            norm.track_running_stats = tracking


def _unit(steps: Tensor) -> Tensor:
    """Return each input's step, scaled to length 1."""
    length = steps.flatten(1).norm(dim=1).clamp_min(1e-12)
    scaled: Tensor = steps / length.view(-1, *[1] * (steps.dim() - 1))
    return scaled
