"""A network whose weights are sums of two: theta = sigma + psi (FedMatch, Sec. 4.2).

One is learned from labels, the other from what has none. The gradient of a loss by either is that
by theta, so that one pass through the network serves: it is given to the one that is to learn.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedapp.core.settings import TrainSettings
from fedapp.learn.networks.base import Network
from fedapp.learn.optimisers import Sgd, clipped
from fedapp.learn.params import Params, assign
from fedapp.learn.training import optimiser_of
from fedapp.learn.work_counter import count_work


class Decomposed:
    """Sigma and psi in training; the network always holds their sum.

    Batch-norm statistics are sigma's alone: psi's are 0.
    """

    def __init__(self, model: Network, sigma: Params, psi: Params, training: TrainSettings) -> None:
        """Load both into the network. training: each has an optimiser of these settings."""
        self._model = model
        self._weights = dict(model.named_parameters())
        device = next(model.parameters()).device
        self.sigma, self.psi = (
            {name: part[name].to(device).clone() for name in self._weights} for part in (sigma, psi)
        )
        assign(model, summed(sigma, psi))
        self._sigma_steps = optimiser_of(list(self.sigma.values()), training)
        self._psi_steps = optimiser_of(list(self.psi.values()), training)

    def learn_sigma(self, loss: Tensor, weight: float) -> None:
        """Step sigma down the gradient of weight * loss, of a loss of the network.

        The loss's own gradient is shortened: a weight of 10 makes nearly every one longer than any.
        """
        gradients = [weight * gradient for gradient in self._gradients(loss)]
        self._step(self._sigma_steps, self.sigma, gradients)

    def learn_psi(self, loss: Tensor | None, l1: float, l2: float) -> None:
        """Step psi down the gradient of loss + l1 sum |psi| + l2 sum (sigma - psi)^2.

        The two sums are over all weights; None: a loss of 0.
        """
        gradients = (
            [torch.zeros_like(w) for w in self._weights.values()]
            if loss is None
            else self._gradients(loss)
        )
        for name, gradient in zip(self._weights, gradients, strict=True):
            sigma, psi = self.sigma[name], self.psi[name]
            gradient += l1 * psi.sign() + 2 * l2 * (psi - sigma)
        self._step(self._psi_steps, self.psi, gradients)

    def parts(self) -> tuple[Params, Params]:
        """Return copies of sigma and psi on the CPU, all tensors of the network each."""
        whole = {name: t.detach().cpu().clone() for name, t in self._model.state_dict().items()}
        zeros = {name: torch.zeros_like(t) for name, t in whole.items()}
        sigma, psi = (
            {name: t.cpu().clone() for name, t in part.items()} for part in (self.sigma, self.psi)
        )
        return {**whole, **sigma}, {**zeros, **psi}

    def _gradients(self, loss: Tensor) -> list[Tensor]:
        """Return the loss's gradient by theta, shortened as everywhere."""
        return clipped(torch.autograd.grad(loss, list(self._weights.values())))

    @torch.no_grad()
    def _step(self, steps: Optimizer | Sgd, part: Params, gradients: Sequence[Tensor]) -> None:
        for tensor, gradient in zip(part.values(), gradients, strict=True):
            tensor.grad = gradient
        steps.step()
        count_work(steps=1)
        for name, weight in self._weights.items():
            torch.add(self.sigma[name], self.psi[name], out=weight)


def summed(sigma: Params, psi: Params, below: float | None = None) -> Params:
    """Return theta = sigma + psi, tensor by tensor; whole numbers are sigma's.

    below: entries of psi of at most this absolute value count as 0; None: all count.
    """
    theta = {}
    for name, tensor in sigma.items():
        other = psi[name] if below is None else psi[name] * (psi[name].abs() > below)
        theta[name] = tensor + other if tensor.is_floating_point() else tensor
    return theta


def first_psi(sigma: Params, model: nn.Module, factor: float) -> Params:
    """Return the psi that training begins with: factor * sigma, and 0 for batch-norm statistics."""
    weights = {name for name, _ in model.named_parameters()}
    return {n: t * factor if n in weights else torch.zeros_like(t) for n, t in sigma.items()}
