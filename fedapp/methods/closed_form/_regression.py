"""A regression that starts from the closed form and needs only sums over images.

The closed form takes each class as Gaussian, and all of one shape. A regression does not, and where
labels are many it is right more often. It chooses the head (W, b) that maximises the log-likelihood
of the labels under what sites answer, softmax(W f + b + ln pi_k), where pi_k is the site's class
mix, less a penalty for each step away from the closed form's head (W_0, b_0):

    r / 2 |(W, b) - (W_0, b_0)|^2,    r = PENALTY times the mean eigenvalue of S,

where S is the second moment of the labelled images' (f, 1). The gradient is a sum over images, and
so a sum over sites. H = S / 2 + r I is nowhere smaller than the Hessian (Boehning 1992), so a step
of -H^-1 times the gradient never makes the objective worse, and nobody has to choose its length.

Everything is computed in float64 on the CPU.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from fedapp.learn.linear_head import Head
from fedapp.methods.closed_form._discriminant import Sums

PENALTY = 0.03
"""r in units of the mean eigenvalue of S."""


def gradient_of(features: Tensor, labels: Tensor, head: Head, mix: Tensor) -> Tensor:
    """Return the gradient of the labels' negative log-likelihood at a head, float64 [C, d + 1].

    features: [n, d]. labels: int64 [n]. mix: [C], each entry above 0. The last column belongs to
    the bias. A row sums (p_c - [y = c]) (f, 1) over the images, and all rows add up to zero.
    """
    weight, bias = (part.double() for part in head)
    seen = features.double()
    answers = torch.softmax(seen @ weight.T + bias + mix.double().log(), dim=1)
    answers[torch.arange(len(labels)), labels] -= 1
    return answers.T @ _with_one(seen)


@dataclass(frozen=True, eq=False)
class Regression:
    """What turns a gradient into the next head.

    start: [C, d + 1], weights and biases of the closed form's head. penalty: r. factor: lower
    Cholesky factor of H, [d + 1, d + 1].
    """

    start: Tensor
    penalty: float
    factor: Tensor

    @classmethod
    def of(cls, sums: Sums, head: Head) -> Self:
        """Return it for the sums of all labelled images, of which there is one at least."""
        total = torch.cat([sums.total, torch.tensor([sums.images], dtype=torch.float64)])
        moment = torch.cat([sums.second, sums.total[None]])
        moment = torch.cat([moment, total[:, None]], 1)
        penalty = PENALTY * float(moment.diagonal().mean())
        bound = moment / 2 + penalty * torch.eye(len(moment), dtype=torch.float64)
        return cls(_joined(head), penalty, torch.linalg.cholesky(bound))

    def after(self, head: Head, gradient: Tensor) -> Head:
        """Return the head, float32, after a step from `head`, where the gradient [C, d + 1] is."""
        at = _joined(head)
        slope = gradient.double() + self.penalty * (at - self.start)
        new = at - torch.cholesky_solve(slope.T, self.factor).T
        return new[:, :-1].float(), new[:, -1].float()


def regressed(head: Head, features: Tensor, labels: Tensor, mix: Tensor, steps: int) -> Head:
    """Return a head after so many steps on these labelled images alone, n >= 1.

    features: [n, d]. labels: int64 [n]. mix: [C].
    """
    one = Regression.of(Sums.of(features, labels, len(mix)), head)
    for _ in range(steps):
        head = one.after(head, gradient_of(features, labels, head, mix))
    return head


def _joined(head: Head) -> Tensor:
    """Return weights and biases side by side, float64 [C, d + 1]."""
    weight, bias = (part.double() for part in head)
    return torch.cat([weight, bias[:, None]], 1)


def _with_one(features: Tensor) -> Tensor:
    return torch.cat([features, torch.ones(len(features), 1, dtype=features.dtype)], 1)
