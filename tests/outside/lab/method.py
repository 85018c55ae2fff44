"""A method: FedAvg from labelled images, some of each label given to the other classes."""

from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedapp.core.settings import CLOSED
from fedapp.learn.objectives import supervised
from fedapp.learn.steps import Step
from fedapp.methods.averaging.base import FromLabelled, work_of
from fedapp.methods.base import SiteContext
from fedapp.protocol.messages import Task


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class Smoothed(FromLabelled):
    name: ClassVar[str] = "lab.method:Smoothed"

    smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.1

    def steps(self, task: Task, site: SiteContext) -> Iterator[Step]:
        def loss(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            return nn.functional.cross_entropy(network(x), y, label_smoothing=self.smoothing)

        return supervised(work_of(task, site), loss)
