"""FedAdam (Reddi et al. 2021, Algorithm 2): Adam on the mean's change, at the server."""

from dataclasses import dataclass as plain
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from fedapp.aggregation.server_optimizers import ServerOptimizer
from fedapp.core.settings import CLOSED
from fedapp.methods.averaging.base import FromLabelled

BETA1, BETA2, TAU = 0.9, 0.99, 1e-3


@plain(frozen=True)
class Adam(ServerOptimizer):
    def step(self, w, mean, known):
        known = known or {"m": torch.zeros_like(w), "v": torch.full_like(w, TAU**2)}
        m = BETA1 * known["m"] + (1 - BETA1) * (mean - w)
        v = BETA2 * known["v"] + (1 - BETA2) * (mean - w).square()
        return w + self.rate * m / (v.sqrt() + TAU), {"m": m, "v": v}


@dataclass(frozen=True, config=CLOSED)
class FedAdam(FromLabelled):
    name: ClassVar[str] = "lab.fedadam:FedAdam"

    rate: Annotated[float, Field(gt=0)] = 0.01

    def averaging(self, rule):
        return Adam(rule, self.rate)
