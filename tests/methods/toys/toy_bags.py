"""A toy: no labels at all; a bag's mean answer is pulled to the bag's known class proportions."""

from collections.abc import Iterator
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedapp.core.settings import CLOSED
from fedapp.data.sites import BAGS, Bags
from fedapp.learn.steps import Step, repeated
from fedapp.methods.averaging.base import Averaging, budget_of
from fedapp.methods.base import SiteContext
from fedapp.protocol.messages import Reply, SiteFacts, Task


@dataclass(frozen=True, config=CLOSED)
class ToyBags(Averaging):
    name: ClassVar[str] = "toy_bags"
    learns_from: ClassVar[frozenset[str]] = frozenset({BAGS})

    def weight(self, facts: SiteFacts, reply: Reply) -> float:
        return facts.bagged

    def steps(self, task: Task, site: SiteContext) -> Iterator[Step]:
        part = site.data.parts[BAGS]
        bags = part.supervision
        assert isinstance(bags, Bags)
        wanted = bags.proportions.float().to(site.device)
        site.model.train()

        def loss(network: nn.Module, inputs: Tensor, wanted: Tensor) -> Tensor:
            mean = torch.softmax(network(inputs), 1).mean(0)
            return -(wanted * mean.clamp_min(1e-6).log()).sum()

        def epoch() -> Iterator[Step]:
            sizes = torch.bincount(bags.bag.cpu(), minlength=len(wanted))
            for number in (sizes > 1).nonzero().flatten().tolist():
                images = part.inputs[bags.bag == number]
                yield Step(loss, (site.normalise(images), wanted[number]))

        return repeated(epoch, *budget_of(task, site.training))


METHOD = ToyBags
