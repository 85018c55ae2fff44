"""Two remedies for class imbalance at a site: balanced sampling and logit adjustment.

Both aim at the balanced error, the mean of the error rates of the classes: every class counts the
same, however few images the site has of it. Balanced sampling draws each class equally often. Logit
adjustment (Menon et al. 2021, Eq. 10, with tau = 1) adds ln pi_k to the logits during training; the
trained network then answers without it.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedapp.learn.class_priors import class_mix

ImbalanceRemedy = Literal["plain", "balanced", "adjusted"]
PLAIN: Final = "plain"
BALANCED: Final = "balanced"
ADJUSTED: Final = "adjusted"


@dataclass(frozen=True)
class LogitAdjustment:
    """Adds ln pi, one number for each class, to logits. Without values it changes nothing.

    Two adjustments with equal values compare equal, so losses that hold them do, too.
    """

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
    """Cross entropy of a network's logits + ln pi. Instances with equal adjustments are equal."""

    shift: LogitAdjustment

    def __call__(self, network: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss. inputs: normalised, [n, ...]; labels: int64 [n]; n >= 1."""
        return F.cross_entropy(self.shift(network(inputs)), labels)


def class_mix_as_sampled(labels: Tensor, classes: int, uneven: ImbalanceRemedy) -> Tensor:
    """Return the class mix of the labelled images as training samples them, `class_mix`, [C].

    labels: int64 [n], n >= 0. With balanced sampling, all classes that occur are equally frequent.
    """
    counts = torch.bincount(labels.cpu(), minlength=classes).double()
    if uneven == BALANCED:
        counts = (counts > 0) * (len(labels) / (counts > 0).sum().clamp_min(1))
    return class_mix(counts, torch.empty(0, classes))


def balanced_indices(labels: Tensor, count: int, draws: torch.Generator) -> Tensor:
    """Return `count` indices into labels [n], int64, with every class that occurs equally often.

    Class counts differ by at most one; which classes get one more is drawn at random. Within a
    class the images come in random order, and no image repeats before all others of its class have
    come. The indices are sorted by class and lie on the CPU. Where n is 0, the result is empty.
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
