"""Stochastic gradient descent for CPUs, gradient clipping, and the type of a penalty on weights."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd


class Sgd:
    """v <- momentum v + g + decay w, w <- w - rate v; at the first step v is g + decay w.

    It has the arithmetic of `torch.optim.SGD` and nothing else. A site with a dozen images makes
    one step in a round; creating torch's optimiser, its hooks and its profiling would take a tenth
    of the time of that step.

    Each step clears the gradients. rate: above 0. momentum: in [0, 1). decay: 0 or more. A
    parameter without a gradient is left unchanged.
    """

    def __init__(
        self, parameters: Iterable[Tensor], rate: float, momentum: float, decay: float = 0.0
    ) -> None:
        self._parameters = list(parameters)
        self._velocity: list[Tensor | None] = [None] * len(self._parameters)
        self._rate, self._momentum, self._decay = rate, momentum, decay

    def zero_grad(self) -> None:
        """Clear the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters by their gradients, and clear these."""
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


Penalty = Callable[[Sequence[Tensor]], Tensor]
"""All parameters of a network, in their order -> what is added to the loss of each mini-batch."""
MAX_GRADIENT_NORM = 20.0
"""L2 norm over all parameters to which gradients are clipped (Pascanu et al. 2013).

Ordinary mini-batches stay below 12. A mini-batch of two or three images has gradients with norms of
thousands, because batch norm divides by nearly 0, and one such model ruins the average
(docs/research/choices.md).
"""


def clip_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Scale all gradients by one factor so that their norm is at most `MAX_GRADIENT_NORM`.

    Like `clip_grad_norm_`. But on a CPU, where reading the norm takes no time, gradients that are
    short enough are not multiplied by 1.
    """
    if parameters[0].is_cuda:
        nn.utils.clip_grad_norm_(parameters, MAX_GRADIENT_NORM)
        return
    gradients = [p.grad for p in parameters if p.grad is not None]
    length = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    if not length.item() <= MAX_GRADIENT_NORM - 1e-6:  # `not`, because it may be NaN
        nn.utils.clip_grads_with_norm_(parameters, MAX_GRADIENT_NORM, length)


def clipped(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients, scaled by one factor to a norm of at most `MAX_GRADIENT_NORM`."""
    factor = (MAX_GRADIENT_NORM / nn.utils.get_total_norm(gradients)).clamp(max=1)
    return [gradient * factor for gradient in gradients]
