"""FedProx (Li et al. 2020): FedAvg with a pull towards the server's model.

A site minimises F_k(w) + mu / 2 ||w - w_t||^2 (their Eq. 2), so its gradient gains mu (w - w_t);
at mu = 0 it is FedAvg. With `objective="fixmatch"` it is the paper's FixProx.
"""

from functools import partial
from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedapp.core.settings import CLOSED
from fedapp.learn.networks.base import Network
from fedapp.learn.objectives import detached_copies, proximal_penalty
from fedapp.learn.optimisers import Penalty
from fedapp.methods.averaging.base import ByServerOptimizer


@dataclass(frozen=True, config=CLOSED)
class FedProx(ByServerOptimizer):
    """Its one hyper-parameter, and those of local learning."""

    name: ClassVar[str] = "fedprox"
    unsupported: ClassVar = {"privacy.sums": ""}

    proximal: Annotated[float, Field(ge=0)] = 0.01
    """mu of the proximal term; their best values lie in 0.001 to 1."""

    def penalty(self, model: Network) -> Penalty | None:
        """mu / 2 ||w - w_t||^2 over all parameters, w_t being what the network holds now."""
        if not self.proximal:
            return None
        return partial(
            proximal_penalty, anchors=detached_copies(model.parameters()), strength=self.proximal
        )


METHOD = FedProx
