"""MC-dropout probabilities and predictive entropy (paper, Eqs. 9 and 10)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedapp.models.resnet9 import ResNet9

Normalise = Callable[[Tensor], Tensor]
"""uint8 images -> float images, on the same device."""

SCORING_BATCH = 500
"""Images per forward pass without gradients; part of the random stream, so a constant."""


@contextmanager
def mc_dropout(model: nn.Module) -> Iterator[None]:
    """Dropout samples, everything else (batch norm!) in eval; every module's mode is restored."""
    before = {module: module.training for module in model.modules()}
    model.eval()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.train()
    try:
        yield
    finally:
        for module, mode in before.items():
            module.training = mode


@torch.inference_mode()
def mc_probabilities(model: ResNet9, images: Tensor, passes: int, normalise: Normalise) -> Tensor:
    """P_w(y|x): the mean of `passes` dropout samples of the softmax (Eq. 9).

    images: uint8 [n, c, h, w], n >= 0, on the model's device. Returns float32 [n, C] on the CPU,
    rows sum to 1. The trunk runs once per image, only the tail `passes` times: the same
    distribution as `passes` whole passes, since the trunk holds no dropout.
    Draws from torch's global generator: call it inside `rng.seeded`.
    """
    out = []
    with mc_dropout(model):
        for batch in images.split(SCORING_BATCH):
            features = model.trunk(normalise(batch))
            mean = torch.softmax(model.tail(features), dim=1)
            for _ in range(passes - 1):
                mean += torch.softmax(model.tail(features), dim=1)
            out.append((mean / passes).cpu())
    return torch.cat(out) if out else torch.empty(0, model.head.out_features)


def entropy(probabilities: Tensor) -> Tensor:
    """H(y|x) = -sum_c p_c log p_c (Eq. 10), in nats, in [0, ln C]; 0 log 0 = 0.

    probabilities: [..., C], rows sum to 1. Returns [...].
    """
    out: Tensor = torch.special.entr(probabilities).sum(-1)
    return out
