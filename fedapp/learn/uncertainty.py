"""MC-dropout probabilities and predictive entropy (paper, Eqs. 9 and 10), and its decomposition."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import dropout

from fedapp.learn.networks.base import Draw, Features, Network

Normalise = Callable[[Tensor], Tensor]
"""uint8 images -> float images, on the same device."""

SCORING_BATCH = 500
"""Images in a forward pass without gradients. It affects the random stream, so it is a constant."""
_MAX_NUMBERS = SCORING_BATCH * 3 * 96 * 96
"""Numbers in the inputs of such a pass: of larger images, a pass has fewer."""

CACHE_BATCH = 32
"""Images in one piece of the trunk on a CPU, so that the activations fit the CPU's cache."""


def inputs_per_pass(inputs: Sequence[int]) -> int:
    """Return how many inputs of this shape are in a forward pass without gradients.

    500 up to 96 x 96 pixels in colour, 91 at 224 x 224, 17 at 512 x 512.
    """
    return max(1, min(SCORING_BATCH, _MAX_NUMBERS // math.prod(inputs)))


def scoring_batches(inputs: Tensor) -> Sequence[Tensor]:
    """Return inputs [n, ...] in batches of `inputs_per_pass`."""
    split: Sequence[Tensor] = inputs.split(inputs_per_pass(inputs.shape[1:]))
    return split


@torch.inference_mode()
def mc_probabilities(model: Network, images: Tensor, passes: int, normalise: Normalise) -> Tensor:
    """Return P_w(y|x), the mean of `passes` dropout samples of the softmax (Eq. 9).

    images: uint8 [n, c, h, w], n >= 0, on the model's device.
    Returns float32 [n, C] on the CPU, rows sum to 1. The model is left in evaluation mode.

    The trunk runs once for each image, and only the tail runs `passes` times. The distribution is
    that of `passes` complete passes, because the trunk contains no dropout. On a GPU all passes are
    one batch. Draws from torch's global generator, so call it inside `rng.seeded`.
    """
    model.eval()
    if images.is_cuda:
        return on_a_gpu(model, images, passes, normalise).cpu()  # the only sync
    found = (features_of(model, batch, normalise) for batch in scoring_batches(images))
    return torch.cat([passes_in_turn(model, each, passes, dropout_sample) for each in found])


def on_a_gpu(model: Network, images: Tensor, passes: int, normalise: Normalise) -> Tensor:
    """Return the mean of Eq. 9 with as few and as large kernels as possible, [n, C], on the GPU.

    The model must be in evaluation mode and gradients off. The random draws differ from those of
    one pass after another.
    """
    found = (model.trunk(normalise(batch)) for batch in scoring_batches(images))
    return torch.cat([passes_together(model, each, passes, dropout_sample) for each in found])


def features_of(model: Network, images: Tensor, normalise: Normalise) -> Features:
    """Return the trunk's output for a batch, without gradients.

    On a CPU the batch runs in pieces: activations that fit the cache save memory and, in a wide
    network, time. The result is the same, because in evaluation mode an image's features depend on
    that image only.
    """
    found = [model.trunk(normalise(piece)) for piece in cache_sized_pieces(images)]
    return found[0] if len(found) == 1 else tuple(map(torch.cat, zip(*found, strict=True)))


def cache_sized_pieces(images: Tensor) -> Sequence[Tensor]:
    """Return a batch in the pieces in which it goes through a network, at least one."""
    return images.tensor_split(len(images) // CACHE_BATCH + 1 if images.device.type == "cpu" else 1)


def dropout_sample(x: Tensor, p: float) -> Tensor:
    """Keep each value with probability 1 - p, times 1 / (1 - p), or set it to 0; p in [0, 1)."""
    if x.is_cuda:
        return dropout(x, p)  # one kernel
    # Not torch's dropout: on a CPU its Bernoulli draw takes three times as long as a uniform one.
    kept = torch.rand_like(x, dtype=torch.float32).ge_(p).div_(1 - p)
    return kept.to(x.dtype).mul_(x)


def entropy(probabilities: Tensor) -> Tensor:
    """H(y|x) = -sum_c p_c log p_c (Eq. 10), in nats, in [0, ln C]; 0 log 0 = 0.

    probabilities: [..., C], rows sum to 1.
    Returns [...].
    """
    out: Tensor = torch.special.entr(probabilities).sum(-1)
    return out


def entropy_decomposition(samples: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the entropy of the mean answer, and the part of it that is the models' disagreement.

    samples: [S, n, C], answers of S sampled models, rows sum to 1. weights: [S], >= 0, sum 1.

    With p = sum_s w_s p_s, the entropy H(p) has two parts. sum_s w_s H(p_s) is the uncertainty of
    the single models, for images that could belong to either class. The rest is the mutual
    information of answer and model, how far the models contradict each other, which more labels can
    reduce (BALD, Houlsby et al. 2011; Depeweg et al. 2018). Both results are float64 [n], in nats:
    H(p) in [0, ln C], the mutual information in [0, H(p)].
    """
    drawn, share = samples.double(), weights.double()
    total = entropy(torch.einsum("s,snc->nc", share, drawn))
    each = torch.einsum("s,sn->n", share, entropy(drawn))
    return total, (total - each).clamp_min(0)  # below 0 by rounding only


MAX_ROWS = 10_000
"""Rows in a batch of several passes: 200 MiB for a layer of the paper's network in bfloat16."""


def passes_in_turn(model: Network, features: Features, passes: int, dropout: Draw) -> Tensor:
    """Return the mean softmax of `passes` runs of the tail, float32 [n, C]."""
    total = torch.softmax(model.tail(features, dropout), dim=1)
    for _ in range(passes - 1):
        total += torch.softmax(model.tail(features, dropout), dim=1)
    return total / passes


def passes_together(
    model: Network, features: Features, passes: int, dropout: Draw, rows: int = MAX_ROWS
) -> Tensor:
    """Return the same mean as `passes_in_turn`, with up to `rows` rows in each run of the tail.

    Each pass has dropout masks of its own, so the distribution is the same. With the same masks the
    numbers differ by rounding only. On a GPU this starts fewer kernels; a CPU gains nothing.
    """
    inputs = len(features[0])
    most = max(1, rows // max(inputs, 1))
    total = torch.zeros((), device=features[0].device)
    for begin in range(0, passes, most):
        count = min(most, passes - begin)
        repeated = tuple(torch.cat([each] * count) for each in features)
        answers = torch.softmax(model.tail(repeated, dropout), dim=1)
        total = total + answers.unflatten(0, (count, inputs)).sum(0)
    return total / passes
