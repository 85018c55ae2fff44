"""FedUL (Lu et al. 2022): sites know no label at all, only the class proportions of their bags.

A bag's number is the surrogate label. The network answers eta = P(y | x); a fixed layer makes it
Q = P(bag | x) (`learn.bags.transition`, their Theorem 1), whose cross entropy is minimised. The
layer is dropped where the model is used: by their Theorem 4 eta is what labels would have taught.

pi, how often classes are to occur where the model answers, is even: then models of sites with
different mixes can be averaged, and `personal` puts a site's own mix back.
"""

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedapp.data.bags import too_little
from fedapp.data.parts import BAGS
from fedapp.data.sites import SiteData
from fedapp.ground.settings import CLOSED
from fedapp.learn.bags import bag_loss, transition
from fedapp.learn.training import Step, batches
from fedapp.messages.protocol import Task
from fedapp.methods._averaging import work_of
from fedapp.methods._bagged import FromBags, bags_of, shares_of
from fedapp.methods.base import SiteContext


@dataclass(frozen=True, config=CLOSED)
class FedUL(FromBags):
    """Its one switch, and those of all methods that learn from bags."""

    name: ClassVar[str] = "fedul"

    double_softmax: bool = False
    """As the authors' code: Q is taken for logits. Its probabilities are then wrong."""

    def unlearnable(self, data: SiteData) -> tuple[str, str] | None:
        """Return whether a site's bags do not tell its classes apart, as their Theorem 4 needs."""
        return too_little(bags_of(data).filled.cpu()) if data.bagged else None

    def bag_steps(self, task: Task, site: SiteContext) -> Iterator[Step]:
        """Cross entropy of Q."""
        bags, images, work = bags_of(site.data), site.data.parts[BAGS].inputs, work_of(task, site)
        classes = site.data.num_classes
        even = torch.full((classes,), 1 / classes, dtype=torch.float64, device=site.device)
        matrix = transition(bags.proportions, shares_of(bags), even)
        work.begin(len(images))

        def loss(batch: Tensor) -> Tensor:
            logits = site.model(site.normalise(work.view(images[batch])))
            return bag_loss(logits, bags.bag[batch], matrix, self.double_softmax)

        def epoch() -> Iterator[Step]:
            order = torch.randperm(len(images), generator=work.shuffle).to(images.device)
            for batch in batches(order, work.size):
                yield partial(loss, batch)

        return work.passes(epoch)


METHOD = FedUL
