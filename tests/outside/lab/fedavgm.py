"""FedAvgM (Hsu et al. 2019): v <- beta v + (mean - w), w <- w + v, at the server."""

from dataclasses import dataclass as plain
from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedapp.aggregation.server_optimizers import ServerOptimizer
from fedapp.core.settings import CLOSED
from fedapp.methods.averaging.base import FromLabelled


@plain(frozen=True)
class Momentum(ServerOptimizer):
    beta: float = 0.9

    def step(self, w, mean, known):  # of one weight; known: what was returned the time before
        v = mean - w + self.beta * known["v"] if known else mean - w
        return w + v, {"v": v}


@dataclass(frozen=True, config=CLOSED)
class FedAvgM(FromLabelled):
    name: ClassVar[str] = "lab.fedavgm:FedAvgM"

    beta: Annotated[float, Field(ge=0, lt=1)] = 0.9

    def averaging(self, rule):  # around the run's own rule, `rounds.robust`
        return Momentum(rule, beta=self.beta)
