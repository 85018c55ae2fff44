"""The mean answer over MC dropout's passes: one pass after the other, or many as one batch."""

import torch
from torch import Tensor

from fedapp.learn.networks.base import Draw, Features, Network

ROWS = 10_000
"""Most rows of a batch of passes: 200 MiB a layer of the paper's network in bfloat16."""


def in_turn(model: Network, features: Features, passes: int, dropout: Draw) -> Tensor:
    """Return the mean softmax of `passes` tails, float32 [n, C]. features: of n inputs."""
    total = torch.softmax(model.tail(features, dropout), dim=1)
    for _ in range(passes - 1):
        total += torch.softmax(model.tail(features, dropout), dim=1)
    return total / passes


def together(
    model: Network, features: Features, passes: int, dropout: Draw, rows: int = ROWS
) -> Tensor:
    """Return the same mean as `in_turn`, from as few tails as `rows` inputs in one of them allow.

    Each pass has masks of its own, so the distribution is the same. With the same masks the
    numbers differ by rounding alone. A GPU starts so fewer kernels; a CPU wins nothing by it.
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
