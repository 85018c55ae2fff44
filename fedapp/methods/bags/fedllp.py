"""FedLLP (Dulac-Arnold et al. 2019, federated): a bag's mean answer is to equal its proportions.

A step is one bag, whole. With `vat` above 0 it is FedLLP-VAT (Tsai and Lin 2020): answers are also
to stay the same under the worst small change of an image.
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedapp.core.settings import CLOSED
from fedapp.data.sites import BAGS, SiteData
from fedapp.learn.networks.base import Network
from fedapp.learn.objectives import LocalTraining
from fedapp.learn.steps import Step
from fedapp.methods.bags._bagged import FromBags, bags_of
from fedapp.methods.bags._losses import adversarial_loss, proportion_loss
from fedapp.methods.base import SiteContext
from fedapp.protocol.messages import Task


@dataclass(frozen=True, config=CLOSED)
class FedLLP(FromBags):
    """Two hyper-parameters of the consistency term, and those of all methods with bags."""

    name: ClassVar[str] = "fedllp"

    vat: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the consistency term; 0: FedLLP. The paper's: 0.0005 on MNIST, 0.05 on CIFAR-10."""
    radius: Annotated[float, Field(gt=0)] = 0.01
    """Length of the change of a normalised image; the paper's: 0.01 on MNIST, 6 on CIFAR-10."""

    def images_per_step(self, batch_size: int, data: SiteData) -> int:
        """Whole bags; VAT's two passes keep what their gradients need beside it."""
        if not data.bagged:
            return batch_size
        largest = int(bags_of(data).bag.bincount().max())
        return max(batch_size, largest * (3 if self.vat else 1))

    def bag_steps(self, task: Task, site: SiteContext, work: LocalTraining) -> Iterator[Step]:
        """One bag a step, in a new order each pass; batch norm needs two images of a bag."""
        bags, images = bags_of(site.data), site.data.parts[BAGS].inputs
        directions = site.stream("vat", task)
        sizes = torch.bincount(bags.bag, minlength=len(bags.proportions)).tolist()
        members = bags.bag.argsort(stable=True).split(sizes)
        work.begin(max(sizes))

        def loss(network: Network, inputs: Tensor, wanted: Tensor) -> Tensor:
            total = proportion_loss(network(inputs), wanted)
            if not self.vat:
                return total
            start = torch.randn(inputs.shape, generator=directions).to(inputs)
            return total + self.vat * adversarial_loss(network, inputs, self.radius, start)

        def epoch() -> Iterator[Step]:
            for number in torch.randperm(len(sizes), generator=work.shuffle).tolist():
                if sizes[number] > 1:
                    inputs = site.normalise(work.view(images[members[number]]))
                    yield Step(loss, (inputs, bags.proportions[number]))

        return work.passes(epoch)


METHOD = FedLLP
