"""FedUL (Lu et al. 2022): sites know no label, only the class proportions of their bags.

The number of an input's bag is its surrogate label. The network answers eta = P(y | x). A fixed
layer turns this into Q = P(bag | x) (`_losses.transition`, Theorem 1), whose cross entropy is
minimised. For use the layer is dropped: by Theorem 4 eta is what labels would have taught.

pi, the class frequencies for which the model answers, is even. Then models of sites with different
mixes can be averaged, also with those of sites that have labels, whose logits are shifted
accordingly. A site knows its own mix from its bags or labels; `personal` multiplies it back in
(`learn.class_priors`).
"""

from collections.abc import Iterator
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedapp.core.errors import Incompatibility
from fedapp.core.settings import CLOSED
from fedapp.data.bag_proportions import why_unidentifiable
from fedapp.data.sites import BAGS, SiteData
from fedapp.learn.class_priors import class_mix, reweighted
from fedapp.learn.objectives import LabelledLoss, LocalTraining
from fedapp.learn.predictors import Predictor
from fedapp.learn.steps import Step, batches
from fedapp.methods.bags._bagged import FromBags, bag_shares, bags_of
from fedapp.methods.bags._losses import bag_loss, transition
from fedapp.methods.base import SiteContext
from fedapp.methods.incompatibilities import NO_REASONS, Conditions, Reasons
from fedapp.protocol.messages import Evaluation, Task


@dataclass(frozen=True, config=CLOSED)
class FedUL(FromBags):
    """Two switches, beside the settings of all methods that learn from bags."""

    name: ClassVar[str] = "fedul"

    personal: bool = False
    """A site multiplies the common answer by its own class mix."""
    double_softmax: bool = False
    """Use Q as logits, as the authors' code does. The probabilities are then wrong."""

    def incompatibilities(
        self, conditions: Conditions, why: Reasons = NO_REASONS
    ) -> list[Incompatibility]:
        """The bags of a site must tell its classes apart, as Theorem 4 requires."""
        found, site = super().incompatibilities(conditions, why), conditions.site
        wrong = why_unidentifiable(bags_of(site).filled.cpu()) if site and site.bagged else None
        return [*found, Incompatibility("split.bags", *wrong)] if wrong else found

    def bag_steps(self, task: Task, site: SiteContext, work: LocalTraining) -> Iterator[Step]:
        """Cross entropy of Q."""
        bags, images = bags_of(site.data), site.data.parts[BAGS].inputs
        classes = site.data.num_classes
        even = torch.full((classes,), 1 / classes, dtype=torch.float64, device=site.device)
        matrix = transition(bags.proportions, bag_shares(bags), even)
        work.begin(len(images))

        def loss(network: nn.Module, x: Tensor, bag: Tensor) -> Tensor:
            return bag_loss(network(x), bag, matrix, self.double_softmax)

        def epoch() -> Iterator[Step]:
            order = torch.randperm(len(images), generator=work.shuffle).to(images.device)
            for batch in batches(order, work.size):
                yield Step(loss, (site.normalise(work.view(images[batch])), bags.bag[batch]))

        return work.passes(epoch)

    def labelled_loss(self, site: SiteContext) -> LabelledLoss:
        """Return the cross entropy of logits + ln pi_k, with pi_k the class mix among the labels.

        So the model itself answers as if all classes were equally frequent, as it does with bags.
        """
        shift = class_mix(label_counts(site.data), torch.empty(0, site.data.num_classes))
        added = shift.log().float().to(site.device)
        return lambda network, x, y: nn.functional.cross_entropy(network(x) + added, y)

    def measured(self, task: Task, site: SiteContext) -> dict[str, Evaluation]:
        """Evaluate the models; with `personal`, the used answer is the personal one."""
        results = super().measured(task, site)
        if self.personal:
            self._load(task, site)
            mix = self._mix(site)
            for part in ("val", "test"):
                images, labels = site.labelled_part(part)
                answers = reweighted(site.predicted(images), mix).float()
                results[part] = site.evaluation(answers, labels)
        return results

    def used(self, task: Task, site: SiteContext, answer: str = "") -> dict[str, Predictor]:
        """Return the model in use; `personal`: with the class mix that multiplies its answers."""
        if answer or not self.personal:
            return super().used(task, site, answer)
        self._load(task, site)
        mix = self._mix(site)
        return {self.answer: Predictor(site.params(), class_mix=mix)}

    def _load(self, task: Task, site: SiteContext) -> None:
        if self.answer == "common":
            site.load(task.models["server"][0])
        else:
            self.load_tuned(task, site)

    def _mix(self, site: SiteContext) -> Tensor:
        """Return the site's class mix; without labels and bags from the model's answers."""
        return site_class_mix(site.data, site.predicted(site.data.unlabelled))


def label_counts(data: SiteData) -> Tensor:
    """Return how many labelled inputs of each class a site has, float64 [C]."""
    return torch.bincount(data.labels.cpu(), minlength=data.num_classes).double()


def site_class_mix(data: SiteData, answers: Tensor) -> Tensor:
    """Return a site's class mix pi_k, float64 [C], from its bags and labels, else from answers.

    answers: as `class_mix` takes them.
    """
    counts = label_counts(data)
    if data.bagged:
        known = bags_of(data)
        sizes = torch.bincount(known.bag.cpu(), minlength=len(known.proportions)).double()
        counts = counts + sizes @ known.proportions.cpu().double()
    return class_mix(counts, answers)


METHOD = FedUL
