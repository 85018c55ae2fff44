"""FedPL, a baseline of FedUL's paper: the class that prevails in a bag labels all its images.

That is so in the warm-up. It prevails against the site's own mix (`_losses.prevailing`), which
stands in for the class that the bag was drawn to hold most of: by that the authors' code labels,
but no site is told it. Afterwards a mini-batch's labels are the network's own: those with a
probability of at least `MIN_PSEUDO_LABEL_CONFIDENCE` are learned, and mixed (MixUp, Zhang et al.
2017) with as many of the others, their Eqs. 15 to 17. A mini-batch with fewer than two of either
kind is passed over: batch norm needs two.
"""

from collections.abc import Iterator
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedapp.core.rng import numpy_stream
from fedapp.core.settings import CLOSED
from fedapp.data.sites import BAGS
from fedapp.learn.losses import cross_entropy
from fedapp.learn.objectives import LocalTraining
from fedapp.learn.steps import Step, batches
from fedapp.methods.averaging.base import WARM_UP
from fedapp.methods.bags._bagged import FromBags, bags_of, shares_of
from fedapp.methods.bags._losses import MIN_PSEUDO_LABEL_CONFIDENCE, prevailing
from fedapp.methods.base import SiteContext
from fedapp.protocol.messages import Task

MIXED = 0.3
"""Weight of the mixed images' loss."""
FEWEST = 2
"""Images of each kind that a mini-batch must have."""
BETA = 0.75
"""lambda ~ Beta(BETA, BETA): how two images are mixed."""


@dataclass(frozen=True, config=CLOSED)
class FedPL(FromBags):
    """Its one switch, and those of all methods that learn from bags."""

    name: ClassVar[str] = "fedpl"

    mix_logits: bool = False
    """As the authors' code: the answers are mixed, not the images."""

    def bag_steps(self, task: Task, site: SiteContext, work: LocalTraining) -> Iterator[Step]:
        """Cross entropy with the bag's prevailing class, or with the network's own labels."""
        bags, images = bags_of(site.data), site.data.parts[BAGS].inputs
        bag_label = prevailing(bags.proportions, shares_of(bags))[bags.bag]
        work.begin(len(images))
        lambdas = numpy_stream(site.seed, "mix", task.when, site.data.site)

        def epoch() -> Iterator[Step]:
            order = torch.randperm(len(images), generator=work.shuffle).to(images.device)
            for batch in batches(order, work.size):
                x = site.normalise(work.view(images[batch]))
                if task.action == WARM_UP:
                    yield Step(cross_entropy, (x, bag_label[batch]))
                    continue
                sure, label = labels_of(site, x)
                if FEWEST <= int(sure.sum()) <= len(batch) - FEWEST:
                    share = lambdas.beta(BETA, BETA)
                    yield Step(self._mixed, (x, sure, label, share))

        return work.passes(epoch)

    def _mixed(
        self, network: nn.Module, x: Tensor, sure: Tensor, label: Tensor, share: float
    ) -> Tensor:
        """Return CE of the sure ones + `MIXED` times that of mixtures of sure and unsure ones."""
        plus, minus = sure.nonzero().flatten(), (~sure).nonzero().flatten()
        count = min(len(plus), len(minus))
        first, second = plus[:count], minus[:count]
        logits = network(x[plus])
        total = F.cross_entropy(logits, label[plus])
        if self.mix_logits:
            blended = share * logits[:count] + (1 - share) * network(x[second])
        else:
            blended = network(share * x[first] + (1 - share) * x[second])
        known = F.cross_entropy(blended, label[first])
        other = F.cross_entropy(blended, label[second])
        return total + MIXED * (share * known + (1 - share) * other)


@torch.no_grad()
def labels_of(site: SiteContext, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return which of the normalised images [n, ...] the network is sure of, and its labels."""
    site.model.eval()
    top, label = torch.softmax(site.model(x), 1).max(1)
    site.model.train()
    return top >= MIN_PSEUDO_LABEL_CONFIDENCE, label


METHOD = FedPL
