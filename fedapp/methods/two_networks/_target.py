"""Learning with two networks: the target says what the online one is to answer (FedSiam, Sec. 3).

The online network descends; the target follows it as a moving average, or is the same network, seen
a second time through other views and another dropout sample.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedapp.learn.networks.base import Network
from fedapp.learn.networks.parts import layers_of
from fedapp.learn.objectives import LocalTraining
from fedapp.learn.steps import Step, View, batches
from fedapp.learn.training import freeze_batch_norm

Distance = Literal["mse", "squared_norm", "kl"]
"""How far two answers are from each other, see `inconsistency`."""

_MIN_NORM = 1e-12
"""A layer's norm below this is raised to it: any difference from a layer of zeros is large."""
_NO_LABEL = -100
"""The label of an image without one, as torch's cross entropy leaves it out."""


def ramp_weight(epoch: int, epochs: int) -> float:
    """Return exp(-5 (1 - min(t, n) / n)^2), in (0, 1]: the weight of J in local epoch t of n.

    epoch: t >= 0, a site's local epochs so far, this one included. epochs: n >= 1 (phi_l).
    """
    return math.exp(-5 * (1 - min(epoch, epochs) / epochs) ** 2)


def decay(epoch: int, largest: float) -> float:
    """Return min(1 - 1 / (t + 1), largest), in [0, 1]: alpha of Eq. 9 in local epoch t >= 0."""
    return min(1 - 1 / (epoch + 1), largest)


@torch.no_grad()
def update_target(target: Network, online: Network, alpha: float) -> None:
    """Make target := alpha target + (1 - alpha) online, in place: Eqs. 3 and 9; parameters alone.

    A batch norm's statistics are each network's own.
    """
    torch._foreach_lerp_(list(target.parameters()), list(online.parameters()), 1 - alpha)


def inconsistency(target: Tensor, online: Tensor, distance: Distance) -> Tensor:
    """Return J, the mean over images of how far the online answer is from the target's, >= 0.

    target, online: logits [n, C], n >= 1; no gradient flows into the target. squared_norm: Eq. 4,
    ||p - q||^2 of the probabilities; mse: that by C, as in the authors' code; kl: Eq. 5, KL(p || q)
    with the target's p.
    """
    p, log_q = torch.softmax(target.detach(), 1), torch.log_softmax(online, 1)
    if distance == "kl":
        return F.kl_div(log_q, p, reduction="batchmean")
    squares = (p - log_q.exp()).square()
    return squares.mean() if distance == "mse" else squares.sum(1).mean()


def siamese(
    work: LocalTraining,
    target: Network,
    other: View,
    unlike: Callable[[Tensor, Tensor], Tensor],
    weight: Callable[[int], float],
    before: int,
    after: Callable[[int], None],
) -> Iterator[Step]:
    """L + beta J on mini-batches drawn from labelled and unlabelled images together (Eq. 7).

    L is the sum of the labelled images' cross entropies divided by the size of the whole batch, as
    in the authors' code; J is `unlike` of the target's and the online network's logits, over all
    images. `work.model` is the online network. target: may be the same network. other: the target's
    view. weight: beta in local epoch t, which starts at before + 1. after: called with t after each
    step. Without labelled images the loss is beta J (Eq. 8).
    """
    data, epoch_now, itself = work.data, before, target is work.model
    images = torch.cat([data.labelled, data.unlabelled])
    labels = F.pad(data.labels, (0, len(data.unlabelled)), value=_NO_LABEL)
    shift, others = work.shift, torch.arange(len(data.labels), len(images))
    work.begin(len(images))
    target.train()
    if len(images) == 1:
        freeze_batch_norm(target)

    def loss(online: nn.Module, x: Tensor, seen: Tensor, y: Tensor, beta: float) -> Tensor:
        logits = online(x)
        known = F.cross_entropy(shift(logits), y, ignore_index=_NO_LABEL, reduction="sum") / len(y)
        if not beta and itself:  # a second pass would move its statistics twice
            return known
        with torch.no_grad():  # without beta for the target's statistics: its weights go on
            wanted = (online if itself else target)(seen)
        if not beta:
            return known
        return known + beta * unlike(wanted, logits)

    def epoch() -> Iterator[Step]:
        nonlocal epoch_now
        epoch_now += 1
        beta = weight(epoch_now)
        once, again = (drawn := work.drawn())[: len(data.labels)], drawn[len(data.labels) :]
        every = torch.cat([once, others, again])
        order = every[torch.randperm(len(every), generator=work.shuffle)]
        for batch in batches(order.to(images.device), work.size):
            x = work.normalise(work.view(images[batch]))
            seen = work.normalise(other(images[batch]))
            yield Step(loss, (x, seen, labels[batch], beta))

    for step in work.passes(epoch):
        yield step
        after(epoch_now)


def divergences(
    target: Mapping[str, Tensor], online: Mapping[str, Tensor], trained: Collection[str]
) -> dict[str, Tensor]:
    """Return FSM_j = ||target_j - online_j|| / ||online_j|| of each layer j, a float32 scalar >= 0.

    FedSiam's Eq. 10, its "fair-and-square metric"; Euclidean norms over a layer's tensors together.
    target, online: all tensors of two networks. trained: the names of the parameters, which alone
    count. Equal layers differ by 0, also where both are 0.
    """
    found = {}
    for layer, names in layers_of(online).items():
        weights = [name for name in names if name in trained]
        apart = _norm([target[name].double() - online[name].double() for name in weights])
        length = _norm([online[name].double() for name in weights])
        found[layer] = (apart / length.clamp_min(_MIN_NORM)).float()
    return found


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    squares = [tensor.square().sum() for tensor in tensors]
    return torch.stack([*squares, torch.zeros((), dtype=torch.float64)]).sum().sqrt()
