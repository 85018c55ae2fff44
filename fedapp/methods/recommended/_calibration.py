"""Calibration of one or more answers together, from sums over sites' validation images.

The calibrated answer is softmax(sum_m a_m z_m + ln pi_k), where z_m are the logits of answer m, a_m
is its weight (the inverse of its temperature), and pi_k is the site's class mix. With one answer
this is temperature scaling (Guo et al. 2017). The weights maximise the likelihood of the labels
minus a quadratic penalty. That objective is concave, and its value, gradient and curvature are sums
over images: sites send these, and the server takes Newton steps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from fedapp.methods.closed_form._discriminant import raise_unseen_logits

PENALTY = 1.0
"""The penalty is this over 2, times the square of each weight's relative change from its starting
value."""
MAX_RELATIVE_CHANGE = 0.8
"""Maximum relative change of a weight in one step."""


@dataclass(frozen=True, eq=False)
class Fit:
    """Sums over images at weights a [M]; all are float64.

    images, right: numbers of images, and of those that are answered correctly. loglik: sum of
    log-likelihoods. gradient: [M]. curvature: [M, M], minus the matrix of second derivatives.
    """

    images: float
    right: float
    loglik: float
    gradient: Tensor
    curvature: Tensor

    @classmethod
    def of(cls, logits: Sequence[Tensor], labels: Tensor, mix: Tensor, weights: Tensor) -> Self:
        """Return the sums over n >= 0 images.

        logits: M answers [n, C]. labels: int64 [n]. mix: [C] or [n, C], above 0.
        weights: [M].
        """
        z = torch.stack([raise_unseen_logits(one.double()) for one in logits])
        z = z - z.mean(2, keepdim=True)  # the same answer, and smaller numbers
        scores = torch.einsum("m,mnc->nc", weights.double(), z) + mix.double().log()
        logs = torch.log_softmax(scores, dim=1)
        p, rows = logs.exp(), torch.arange(len(labels))
        expected = (p * z).sum(2)  # [M, n]
        apart = z - expected[..., None]  # [M, n, C]
        return cls(
            float(len(labels)),
            float((scores.argmax(1) == labels).sum()),
            float(logs[rows, labels].sum()),
            (z[:, rows, labels] - expected).sum(1),
            torch.einsum("mnc,knc->mk", p * apart, apart),
        )

    def __add__(self, other: "Fit") -> "Fit":
        return Fit(
            self.images + other.images,
            self.right + other.right,
            self.loglik + other.loglik,
            self.gradient + other.gradient,
            self.curvature + other.curvature,
        )

    def step(self, weights: Tensor, start: Tensor) -> Tensor:
        """Return the weights after one Newton step.

        weights: [M], above 0, float64, at which the sums were computed. start: [M], the weights
        that the penalty pulls to. No weight changes by more than `MAX_RELATIVE_CHANGE` of itself:
        far from the maximum a Newton step overshoots, and a weight must stay above 0. When a weight
        reaches that limit, the others are solved for again.
        """
        scale = PENALTY / start**2
        slope = self.gradient - (weights - start) * scale
        curvature, most = self.curvature + torch.diag(scale), MAX_RELATIVE_CHANGE * weights
        moved, free = torch.zeros_like(weights), torch.ones(len(weights), dtype=torch.bool)
        while bool(free.any()):
            left = slope[free] - curvature[free][:, ~free] @ moved[~free]
            moved[free] = torch.linalg.solve(curvature[free][:, free], left)
            farthest = int((moved.abs() / most * free).argmax())
            if moved[farthest].abs() <= most[farthest]:
                break
            # It goes as far as it may, and the others where they are best then.
            moved[farthest] = moved[farthest].clamp(-most[farthest], most[farthest])
            free[farthest] = False
        return weights + moved

    def to_numbers(self) -> Tensor:
        """Return everything as one row, float64 [3 + M + M^2]."""
        first = torch.tensor([self.images, self.right, self.loglik], dtype=torch.float64)
        return torch.cat([first, self.gradient, self.curvature.flatten()])

    @classmethod
    def from_numbers(cls, numbers: Tensor) -> Self:
        """Return the sums that `to_numbers` wrote."""
        size = (math.isqrt(4 * len(numbers) - 11) - 1) // 2  # of M^2 + M + 3 numbers
        images, right, loglik = numbers[:3].tolist()
        return cls(
            images, right, loglik, numbers[3 : 3 + size], numbers[3 + size :].view(size, size)
        )
