"""A server that moves its model along the average's change by an optimiser (Reddi et al. 2021).

With the server's model w and the average wbar of any rule, Delta = wbar - w takes the place of a
negative gradient. At rate 1 and momentum 0 `FedAvgM` returns the average itself, bit for bit.

Only trained weights move this way. Batch-norm statistics are those of the average: a step beyond it
could make a variance negative. In a round in which no member is used neither the model nor the
optimiser's state changes.
"""

from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedapp.aggregation.base import Average, Member, Memory, Rule
from fedapp.learn.params import Params


@dataclass(frozen=True)
class ServerOptimizer(Rule[Any]):
    """A rule that wraps another one: it turns the other rule's average into a step of an optimiser.

    Its state are tensors of each weight's shape, remembered as `<class name>.<what>.<weight>`; the
    wrapped rule sees only its own memory.
    """

    of: Rule[Any]
    rate: float = 1.0
    """eta, the server's learning rate, above 0."""

    @property
    def masked(self) -> bool:
        """Whether the wrapped rule is masked."""
        return self.of.masked

    def start(self, own: Params) -> Any:
        """Return what the wrapped rule returns."""
        return self.of.start(own)

    def accumulate(self, total: Any, member: Member) -> Any:
        """Return what the wrapped rule returns."""
        return self.of.accumulate(total, member)

    def finish(self, total: Any, own: Params, trained: Collection[str], memory: Memory) -> Average:
        """Take the wrapped rule's average, and move each weight from `own` by one step."""
        prefix, rest = f"{type(self).__name__}.", dict(memory.tensors)
        known: dict[str, dict[str, Tensor]] = {name: {} for name in own if name in trained}
        for key in [key for key in rest if key.startswith(prefix)]:
            what, _, name = key.removeprefix(prefix).partition(".")
            known[name][what] = rest.pop(key)
        average = self.of.finish(total, own, trained, Memory(memory.sites, rest))
        if average.params is None:
            return replace(average, memory=Memory(average.memory.sites, memory.tensors))
        params, tensors = dict(average.params), dict(average.memory.tensors)
        for name, before in known.items():
            params[name], after = self.step(own[name], params[name], before)
            tensors |= {f"{prefix}{what}.{name}": tensor for what, tensor in after.items()}
        return replace(average, params=params, memory=Memory(average.memory.sites, tensors))

    @abstractmethod
    def step(
        self, w: Tensor, mean: Tensor, known: Mapping[str, Tensor]
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return a weight's next value and its new state, all tensors of the shape of w.

        known: the state that this function returned in the average before; empty in the first.
        """


@dataclass(frozen=True)
class FedAvgM(ServerOptimizer):
    """v <- beta v + Delta, w <- w + eta v, with v = 0 at first (Hsu et al. 2019, arXiv:1909.06335).

    Without momentum this is w <- (1 - eta) w + eta wbar, and there is no state.
    """

    momentum: float = 0.0
    """beta, in [0, 1)."""

    def step(
        self, w: Tensor, mean: Tensor, known: Mapping[str, Tensor]
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return w + eta v; note that w + v is wbar + beta v of the average before."""
        ahead = mean + self.momentum * known["velocity"] if known else mean
        after = {"velocity": ahead - w} if self.momentum else {}
        return ahead if self.rate == 1 else w.lerp(ahead, self.rate), after


@dataclass(frozen=True)
class FedAdam(ServerOptimizer):
    """Adam at the server (Reddi et al. 2021, arXiv:2003.00295, Algorithm 2).

    m <- beta_1 m + (1 - beta_1) Delta and v <- beta_2 v + (1 - beta_2) Delta^2, elementwise, and w
    <- w + eta m / (sqrt(v) + tau). As in the paper there is no bias correction. At first m = 0 and
    v = tau^2, the smallest value that the paper allows.
    """

    beta1: float = 0.9
    """In [0, 1)."""
    beta2: float = 0.99
    """In [0, 1)."""
    tau: float = 1e-3
    """Above 0. Changes far below tau are all scaled alike; larger ones become steps of length
    eta."""

    def step(
        self, w: Tensor, mean: Tensor, known: Mapping[str, Tensor]
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return w + eta m / (sqrt(v) + tau)."""
        change = mean - w
        m = known["mean"] if known else torch.zeros_like(w)
        v = known["square"] if known else torch.full_like(w, self.tau**2)
        m = self.beta1 * m + (1 - self.beta1) * change
        v = self.beta2 * v + (1 - self.beta2) * change.square()
        return w + self.rate * m / (v.sqrt() + self.tau), {"mean": m, "square": v}
