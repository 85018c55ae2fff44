"""Stochastic gradient descent with momentum, for CPUs: the arithmetic of `torch.optim.SGD` alone.

A site with a dozen images makes one step in a round. Making the optimiser, its hooks and its
profiling then cost a tenth of that step.
"""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim.sgd import sgd


class Sgd:
    """v <- momentum v + g + decay w, w <- w - rate v; at the first step v is 0 before.

    Each step takes the g away. rate: above 0. momentum: in [0, 1). decay: 0 or more. A parameter
    without a gradient stays as it is.
    """

    def __init__(
        self, parameters: Iterable[Tensor], rate: float, momentum: float, decay: float = 0.0
    ) -> None:
        self._parameters = list(parameters)
        self._velocity: list[Tensor | None] = [None] * len(self._parameters)
        self._rate, self._momentum, self._decay = rate, momentum, decay

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move the parameters by their gradients, and take these away."""
        moving = [k for k, p in enumerate(self._parameters) if p.grad is not None]
        parameters = [self._parameters[k] for k in moving]
        gradients = [p.grad for p in parameters if p.grad is not None]
        velocity = [self._velocity[k] for k in moving]
        sgd(
            parameters, gradients, velocity, foreach=True, lr=self._rate, momentum=self._momentum,
            weight_decay=self._decay, dampening=0.0, nesterov=False, maximize=False,
        )  # fmt: skip
        for k, v in zip(moving, velocity, strict=True):
            self._velocity[k] = v
        self.zero_grad()
