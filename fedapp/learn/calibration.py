"""Calibration of one or more answers, together, from sums over sites' validation images.

The calibrated answer is softmax(sum_m a_m z_m + bias + ln pi_k): z_m are the logits of answer m,
a_m its weight (one over its temperature), bias one number a class, pi_k the site's class mix. With
one answer and no bias it is temperature scaling (Guo et al. 2017); a and bias maximise the
likelihood of the labels, less a quadratic penalty. The penalised likelihood is concave, and its
value, gradient and curvature are sums over images: sites send these, and the server takes Newton's
steps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from fedapp.learn.discriminant import NEVER

BIAS_PENALTY = 10.0
"""Images' worth: half of it times the sum of squared biases is taken off the log-likelihood."""
WEIGHT_PENALTY = 1.0
"""The same for each answer's weight, relative to the weight that it starts from."""
FAR = 30.0
"""How far below an image's other logits that of a class is taken that nobody has images of."""
MOST_CHANGED, MOST_MOVED = 0.8, 2.0
"""By one step: of a weight, in its own size, and of a bias."""


def bounded(logits: Tensor) -> Tensor:
    """Return logits [n, C], those of classes that nobody has images of `FAR` below the others."""
    never = logits <= NEVER / 64  # it may have been divided by a temperature
    least = logits.masked_fill(never, torch.inf).amin(1, keepdim=True)
    return torch.where(never & least.isfinite(), least - FAR, logits)


@dataclass(frozen=True, eq=False)
class Fit:
    """Sums over images at weights a [M] and bias [C], or none [0]; all float64.

    images, right: how many, and how many are answered right. loglik: sum of log-likelihoods.
    gradient: [P], P = M + C or M; curvature: [P, P], minus the matrix of second derivatives.
    """

    images: float
    right: float
    loglik: float
    gradient: Tensor
    curvature: Tensor

    @classmethod
    def of(
        cls, logits: Sequence[Tensor], labels: Tensor, mix: Tensor, weights: Tensor, bias: Tensor
    ) -> Self:
        """Return the sums over n >= 0 images.

        logits: M answers [n, C]. labels: int64 [n]. mix: [C], above 0. weights: [M]. bias: [C], or
        [0]: there is none.
        """
        z = torch.stack([bounded(one.double()) for one in logits])
        z = z - z.mean(2, keepdim=True)  # the same answer, and smaller numbers
        scores = torch.einsum("m,mnc->nc", weights.double(), z) + mix.double().log()
        if len(bias):
            scores = scores + bias.double()
        logs = torch.log_softmax(scores, dim=1)
        p, rows = logs.exp(), torch.arange(len(labels))
        expected = (p * z).sum(2)  # [M, n]
        apart = z - expected[..., None]  # [M, n, C]
        spread = p * apart
        gradient = torch.cat(
            [
                (z[:, rows, labels] - expected).sum(1),
                torch.bincount(labels, minlength=p.shape[1]) - p.sum(0),
            ]
        )
        cross = spread.sum(1)  # [M, C]
        own = torch.einsum("mnc,knc->mk", spread, apart)
        among = torch.diag(p.sum(0)) - p.T @ p
        curvature = torch.cat([torch.cat([own, cross], 1), torch.cat([cross.T, among], 1)])
        size = len(weights) + len(bias)
        gradient, curvature = gradient[:size], curvature[:size, :size]
        right = (scores.argmax(1) == labels).sum()
        return cls(
            float(len(labels)), float(right), float(logs[rows, labels].sum()), gradient, curvature
        )

    def __add__(self, other: "Fit") -> "Fit":
        return Fit(
            self.images + other.images,
            self.right + other.right,
            self.loglik + other.loglik,
            self.gradient + other.gradient,
            self.curvature + other.curvature,
        )

    def step(self, weights: Tensor, bias: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights and bias after one of Newton's steps, from those that the sums are at.

        weights, start: [M], above 0, and bias: [C] or [0], float64. start: the weights that the
        penalty pulls to. The step is made shorter where a weight would change by more than
        `MOST_CHANGED` of itself, or a bias by more than `MOST_MOVED`: far from the maximum Newton's
        own leaps off.
        """
        count = len(weights)
        scale = torch.cat([WEIGHT_PENALTY / start**2, torch.full_like(bias, BIAS_PENALTY)])
        pull = torch.cat([weights - start, bias]) * scale
        moved = torch.linalg.solve(self.curvature + torch.diag(scale), self.gradient - pull)
        most = torch.cat([MOST_CHANGED * weights, torch.full_like(bias, MOST_MOVED)])
        moved = moved / (moved.abs() / most).max().clamp_min(1)
        return weights + moved[:count], bias + moved[count:]

    def to_numbers(self) -> Tensor:
        """Return all of it in a row, float64 [3 + P + P^2]."""
        first = torch.tensor([self.images, self.right, self.loglik], dtype=torch.float64)
        return torch.cat([first, self.gradient, self.curvature.flatten()])

    @classmethod
    def from_numbers(cls, numbers: Tensor) -> Self:
        """Return what `to_numbers` wrote."""
        size = (math.isqrt(4 * len(numbers) - 11) - 1) // 2  # of P^2 + P + 3 numbers
        images, right, loglik = numbers[:3].tolist()
        return cls(
            images, right, loglik, numbers[3 : 3 + size], numbers[3 + size :].view(size, size)
        )
