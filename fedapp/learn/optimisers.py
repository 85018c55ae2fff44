"""Stochastic gradient descent on a CPU, gradient clipping, and the type of a penalty on weights."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
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


Penalty = Callable[[Sequence[Tensor]], Tensor]
"""Of all parameters of a network, in their order: what is added to each mini-batch's loss."""
MAX_GRADIENT_NORM = 20.0
"""L2 norm over all parameters to which a longer gradient is shortened (Pascanu et al. 2013).

Ordinary mini-batches stay below 12. A mini-batch of two or three images has gradients of thousands:
batch norm divides by nearly nothing, and one such model wrecks the average
(docs/research/choices.md).
"""


def clip_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Scale the gradients to `MAX_GRADIENT_NORM` together where they are longer.

    As `clip_grad_norm_` does; but on a CPU, where a look at the length costs nothing, those that
    are short enough are not multiplied by 1.
    """
    if parameters[0].is_cuda:
        nn.utils.clip_grad_norm_(parameters, MAX_GRADIENT_NORM)
        return
    gradients = [p.grad for p in parameters if p.grad is not None]
    length = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    if not length.item() <= MAX_GRADIENT_NORM - 1e-6:  # not: it may be NaN
        nn.utils.clip_grads_with_norm_(parameters, MAX_GRADIENT_NORM, length)


def clipped(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients, scaled to `MAX_GRADIENT_NORM` together where they are longer."""
    factor = (MAX_GRADIENT_NORM / nn.utils.get_total_norm(gradients)).clamp(max=1)
    return [gradient * factor for gradient in gradients]
