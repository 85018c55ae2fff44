"""MC-dropout probabilities, predictive entropy (paper, Eqs. 9 and 10) and what it is made of."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import dropout

from fedapp.learn.networks.base import Draw, Features, Network

Normalise = Callable[[Tensor], Tensor]
"""uint8 images -> float images, on the same device."""

SCORING_BATCH = 500
"""Images per forward pass without gradients; part of the random stream, so a constant."""
_MAX_NUMBERS = SCORING_BATCH * 3 * 96 * 96
"""Most numbers in such a pass: of larger images there are fewer."""

CACHE_BATCH = 32
"""Images per piece of the trunk on a CPU: their activations stay in its cache."""


def inputs_per_pass(inputs: Sequence[int]) -> int:
    """Return how many inputs of a shape are in a forward pass without gradients.

    500 up to 96 x 96 pixels in colour, 91 at 224 x 224, 17 at 512 x 512.
    """
    return max(1, min(SCORING_BATCH, _MAX_NUMBERS // math.prod(inputs)))


def scoring_batches(inputs: Tensor) -> Sequence[Tensor]:
    """Return inputs [n, ...], `inputs_per_pass` by `inputs_per_pass`."""
    split: Sequence[Tensor] = inputs.split(inputs_per_pass(inputs.shape[1:]))
    return split


@torch.inference_mode()
def mc_probabilities(model: Network, images: Tensor, passes: int, normalise: Normalise) -> Tensor:
    """P_w(y|x): the mean of `passes` dropout samples of the softmax (Eq. 9).

    images: uint8 [n, c, h, w], n >= 0, on the model's device. Returns float32 [n, C] on the CPU,
    rows sum to 1. The model is left in eval mode. The trunk runs once per image, only the tail
    `passes` times: the same distribution as `passes` whole passes, since the trunk holds no
    dropout. On a GPU all passes are one batch. Draws from torch's global generator: call it inside
    `rng.seeded`.
    """
    model.eval()
    if images.is_cuda:
        return on_a_gpu(model, images, passes, normalise).cpu()  # the only sync
    found = (features_of(model, batch, normalise) for batch in scoring_batches(images))
    return torch.cat([passes_in_turn(model, each, passes, dropout_sample) for each in found])


def on_a_gpu(model: Network, images: Tensor, passes: int, normalise: Normalise) -> Tensor:
    """Return the same mean by as few and as large kernels as can be, [n, C] on the images' device.

    The model is in eval mode, gradients are off. Other draws than one pass after the other.
    """
    found = (model.trunk(normalise(batch)) for batch in scoring_batches(images))
    return torch.cat([passes_together(model, each, passes, dropout_sample) for each in found])


def features_of(model: Network, images: Tensor, normalise: Normalise) -> Features:
    """Return the trunk's output for a batch, without gradients.

    On a CPU it runs piece by piece: activations that fit the cache save memory and, in a wide
    network, time. The result is the same: in eval mode an image's features depend on it alone.
    """
    found = [model.trunk(normalise(piece)) for piece in cache_sized_pieces(images)]
    return found[0] if len(found) == 1 else tuple(map(torch.cat, zip(*found, strict=True)))


def cache_sized_pieces(images: Tensor) -> Sequence[Tensor]:
    """Return a batch in the pieces in which it goes through a network, one at least."""
    return images.tensor_split(len(images) // CACHE_BATCH + 1 if images.device.type == "cpu" else 1)


def dropout_sample(x: Tensor, p: float) -> Tensor:
    """Keep each value with probability 1 - p, scaled by 1 / (1 - p), else 0; p in [0, 1)."""
    if x.is_cuda:
        return dropout(x, p)  # one kernel
    # Not torch's dropout: its Bernoulli draw takes a CPU three times as long as a uniform one.
    kept = torch.rand_like(x, dtype=torch.float32).ge_(p).div_(1 - p)
    return kept.to(x.dtype).mul_(x)


def entropy(probabilities: Tensor) -> Tensor:
    """H(y|x) = -sum_c p_c log p_c (Eq. 10), in nats, in [0, ln C]; 0 log 0 = 0.

    probabilities: [..., C], rows sum to 1. Returns [...].
    """
    out: Tensor = torch.special.entr(probabilities).sum(-1)
    return out


def entropy_decomposition(samples: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the entropy of the mean answer, and the part of it that is the model's doubt.

    samples: [S, n, C], answers of S drawn models, rows sum to 1. weights: [S], >= 0, sum to 1.

    With p = sum_s w_s p_s the entropy H(p) is sum_s w_s H(p_s), doubt that each drawn model has
    (images that could be either class), and the rest, the mutual information of answer and model:
    how far they contradict each other, which more labels can mend (BALD, Houlsby et al. 2011;
    Depeweg et al. 2018). Both float64 [n], in nats: H(p) in [0, ln C], the rest in [0, H(p)].
    """
    drawn, share = samples.double(), weights.double()
    total = entropy(torch.einsum("s,snc->nc", share, drawn))
    each = torch.einsum("s,sn->n", share, entropy(drawn))
    return total, (total - each).clamp_min(0)  # below 0 by rounding only


MAX_ROWS = 10_000
"""Most rows of a batch of passes: 200 MiB a layer of the paper's network in bfloat16."""


def passes_in_turn(model: Network, features: Features, passes: int, dropout: Draw) -> Tensor:
    """Return the mean softmax of `passes` tails, float32 [n, C]. features: of n inputs."""
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
