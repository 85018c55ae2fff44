"""What keeps a step in bounds: a penalty on weights, the greatest length of a gradient."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

Penalty = Callable[[Sequence[Tensor]], Tensor]
"""Of all parameters of a network, in their order: what is added to each mini-batch's loss."""
LONGEST_GRADIENT = 20.0
"""L2 norm over all parameters to which a longer gradient is shortened (Pascanu et al. 2013).

Ordinary mini-batches stay below 12. A mini-batch of two or three images has gradients of thousands:
batch norm divides by nearly nothing, and one such model wrecks the average
(docs/research/choices.md).
"""


def shorten(parameters: Sequence[nn.Parameter]) -> None:
    """Scale the gradients to `LONGEST_GRADIENT` together where they are longer.

    As `clip_grad_norm_` does; but on a CPU, where a look at the length costs nothing, those that
    are short enough are not multiplied by 1.
    """
    if parameters[0].is_cuda:
        nn.utils.clip_grad_norm_(parameters, LONGEST_GRADIENT)
        return
    gradients = [p.grad for p in parameters if p.grad is not None]
    length = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    if not length.item() <= LONGEST_GRADIENT - 1e-6:  # not: it may be NaN
        nn.utils.clip_grads_with_norm_(parameters, LONGEST_GRADIENT, length)


def shortened(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients, scaled to `LONGEST_GRADIENT` together where they are longer."""
    factor = (LONGEST_GRADIENT / nn.utils.get_total_norm(gradients)).clamp(max=1)
    return [gradient * factor for gradient in gradients]
