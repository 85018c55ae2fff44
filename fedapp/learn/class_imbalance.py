"""Classes of which a site has few images: balanced sampling and logit adjustment.

Both aim at the balanced error, the mean of the classes' own: every class counts alike, however few
images a site has of it. Balanced sampling draws each class equally often. Logit adjustment (Menon
et al. 2021, Eq. 10, with tau = 1) adds ln pi_k to the logits in training, and answers without it.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedapp.learn.class_priors import class_mix

Uneven = Literal["plain", "balanced", "adjusted"]
PLAIN: Final = "plain"
BALANCED: Final = "balanced"
ADJUSTED: Final = "adjusted"


@dataclass(frozen=True)
class LogitAdjustment:
    """ln pi by class, added to logits; none: they stay as they are. Equal where the numbers are."""

    values: tuple[float, ...] = ()

    def __call__(self, logits: Tensor) -> Tensor:
        """Return logits [n, C] + ln pi [C]."""
        return logits + _on_device(self.values, logits.device) if self.values else logits


NO_ADJUSTMENT: Final = LogitAdjustment()


@lru_cache(maxsize=256)
def _on_device(values: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=device)


@dataclass(frozen=True)
class AdjustedCrossEntropy:
    """Cross entropy of a network's logits + ln pi; equal where the shift is."""

    shift: LogitAdjustment

    def __call__(self, network: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        """Of normalised inputs [n, ...] and their labels int64 [n], n >= 1; a scalar."""
        return F.cross_entropy(self.shift(network(inputs)), labels)


def class_mix_as_sampled(labels: Tensor, classes: int, uneven: Uneven) -> Tensor:
    """Return the class mix of labelled images as training draws them: `priors.class_mix`, [C].

    labels: int64 [n], n >= 0. Where sampling is balanced, the classes that occur are as frequent.
    """
    counts = torch.bincount(labels.cpu(), minlength=classes).double()
    if uneven == BALANCED:
        counts = (counts > 0) * (len(labels) / (counts > 0).sum().clamp_min(1))
    return class_mix(counts, torch.empty(0, classes))


def balanced_indices(labels: Tensor, count: int, draws: torch.Generator) -> Tensor:
    """Return `count` places in labels [n], each class that occurs as often, to within one: int64.

    Within a class images come in random order, and none again before all others of it have come.
    Who gets one more is drawn. They lie class by class, on the CPU. n = 0: none.
    """
    own = labels.cpu()
    present = own.unique()
    if not len(present):
        return torch.empty(0, dtype=torch.int64)
    present = present[torch.randperm(len(present), generator=draws)]
    each, more = divmod(count, len(present))
    found = []
    for place, c in enumerate(present.tolist()):
        images, wanted = (own == c).nonzero().flatten(), each + (place < more)
        rounds = -(-wanted // len(images))
        orders = [torch.randperm(len(images), generator=draws) for _ in range(rounds)]
        found.append(images[torch.cat([*orders, torch.empty(0, dtype=torch.int64)])[:wanted]])
    return torch.cat(found)
