"""FedPL, a baseline of FedUL's paper: all images of a bag get the class that prevails in it.

This is done in the warm-up. A class prevails relative to the site's own mix
(`_losses.prevailing_classes`). The authors' code uses the class of which the bag was drawn to hold
most, which no real site knows. After the warm-up the labels of a mini-batch are the network's own:
those with a probability of at least `MIN_PSEUDO_LABEL_CONFIDENCE` are learned, and mixed (MixUp,
Zhang et al. 2017) with as many of the other images, as in Eqs. 15 to 17. A mini-batch with fewer
than two images of either kind is skipped, because batch norm needs two.
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
from fedapp.methods.bags._bagged import FromBags, bag_shares, bags_of
from fedapp.methods.bags._losses import MIN_PSEUDO_LABEL_CONFIDENCE, prevailing_classes
from fedapp.methods.base import SiteContext
from fedapp.protocol.messages import Task

MIXED_LOSS_WEIGHT = 0.3
"""Weight of the loss of mixed images."""
MIN_IMAGES_OF_A_KIND = 2
"""Minimum number of confident, and of other, images in a mini-batch."""
MIXUP_BETA = 0.75
"""The share of an image in a mixture is drawn from Beta(MIXUP_BETA, MIXUP_BETA)."""


@dataclass(frozen=True, config=CLOSED)
class FedPL(FromBags):
    """One switch, beside the settings of all methods that learn from bags."""

    name: ClassVar[str] = "fedpl"

    mix_logits: bool = False
    """Mix the answers instead of the images, as the authors' code does."""

    def bag_steps(self, task: Task, site: SiteContext, work: LocalTraining) -> Iterator[Step]:
        """Cross entropy with the bag's prevailing class, or with the network's own labels."""
        bags, images = bags_of(site.data), site.data.parts[BAGS].inputs
        bag_label = prevailing_classes(bags.proportions, bag_shares(bags))[bags.bag]
        work.begin(len(images))
        lambdas = numpy_stream(site.seed, "mix", task.when, site.data.site)

        def epoch() -> Iterator[Step]:
            order = torch.randperm(len(images), generator=work.shuffle).to(images.device)
            for batch in batches(order, work.size):
                x = site.normalise(work.view(images[batch]))
                if task.action == WARM_UP:
                    yield Step(cross_entropy, (x, bag_label[batch]))
                    continue
                sure, label = confident_labels(site, x)
                if MIN_IMAGES_OF_A_KIND <= int(sure.sum()) <= len(batch) - MIN_IMAGES_OF_A_KIND:
                    share = lambdas.beta(MIXUP_BETA, MIXUP_BETA)
                    yield Step(self._mixed, (x, sure, label, share))

        return work.passes(epoch)

    def _mixed(
        self, network: nn.Module, x: Tensor, sure: Tensor, label: Tensor, share: float
    ) -> Tensor:
        """Return CE of the confident images + `MIXED_LOSS_WEIGHT` times that of the mixtures."""
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
        return total + MIXED_LOSS_WEIGHT * (share * known + (1 - share) * other)


@torch.no_grad()
def confident_labels(site: SiteContext, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return for which normalised images [n, ...] the network is confident, and its labels."""
    site.model.eval()
    top, label = torch.softmax(site.model(x), 1).max(1)
    site.model.train()
    return top >= MIN_PSEUDO_LABEL_CONFIDENCE, label


METHOD = FedPL
