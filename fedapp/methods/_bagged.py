"""What methods that learn from bags have in common: any average, and a site's own class mix.

Sites may differ in what they know: some have labels, some bags with class proportions, some
nothing. The common model is one for which all classes are equally frequent, so that sites with
other mixes can be averaged. A site knows its own mix, by its bags or its labels, and may multiply
the common answer by it (`learn.priors`).
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedapp.data.parts import BAGS, LABELLED, Bags
from fedapp.data.sites import SiteData
from fedapp.ground.settings import CLOSED
from fedapp.learn.metrics import evaluation
from fedapp.learn.networks.base import Network
from fedapp.learn.networks.parts import batch_norm_names
from fedapp.learn.objectives import copies, pull, supervised
from fedapp.learn.predictors import Predictor
from fedapp.learn.priors import class_mix, weighted
from fedapp.learn.training import Step
from fedapp.messages.protocol import Evaluation, Reply, SiteFacts, Task
from fedapp.methods._averaging import Averaging, work_of
from fedapp.methods.base import SiteContext


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class FromBags(Averaging):
    """A method made from this says what a site with bags minimises (`bag_steps`)."""

    learns_from: ClassVar[frozenset[str]] = frozenset({BAGS, LABELLED})

    personal: bool = False
    """A site multiplies the common answer by its own class mix."""
    proximal: Annotated[float, Field(ge=0)] = 0.0
    """mu of FedProx's term, mu / 2 ||w - w_t||^2; 0: FedAvg."""
    local_norms: bool = False
    """Batch norms stay at home, as in FedBN."""
    l1: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the sum of all parameters' absolute values."""

    def weight(self, facts: SiteFacts, reply: Reply) -> float:
        """Return how many images a site learned from."""
        return facts.bagged + facts.labelled

    def kept_private(self, model: nn.Module) -> frozenset[str]:
        """Everything of every batch norm, if so set."""
        return batch_norm_names(model) if self.local_norms else frozenset()

    def penalty(self, model: Network) -> Callable[[], Tensor] | None:
        """Return the proximal term and the L1 term, as far as set."""
        weights = list(model.parameters())
        terms: list[Callable[[], Tensor]] = []
        if self.proximal:
            terms.append(partial(pull, weights, copies(weights), self.proximal))
        if self.l1:
            terms.append(lambda: self.l1 * torch.stack([w.abs().sum() for w in weights]).sum())
        return (lambda: torch.stack([term() for term in terms]).sum()) if terms else None

    def steps(self, task: Task, site: SiteContext) -> Iterator[Step]:
        """Mini-batches of what the site has: labelled images, then bags."""
        if len(site.data.labels):
            yield from supervised(work_of(task, site), self.labelled_loss(site))
        if site.data.bagged:
            yield from self.bag_steps(task, site)

    def labelled_loss(self, site: SiteContext) -> Callable[[Tensor, Tensor], Tensor]:
        """Return cross entropy of logits + ln pi_k: classes are as frequent as at the site.

        So the model itself answers as if all were equally frequent, as it does with bags.
        """
        shift = own_mix(site.data, torch.empty(0, site.data.num_classes)).log().float()
        shift = shift.to(site.device)
        return lambda x, y: nn.functional.cross_entropy(site.model(x) + shift, y)

    def measured(self, task: Task, site: SiteContext) -> dict[str, Evaluation]:
        """Measure the models; where it is set, what the site uses is the personal answer."""
        results = super().measured(task, site)
        if self.personal:
            self._load(task, site)
            mix = self._mix(site)
            for part in ("val", "test"):
                images, labels = site.labelled_part(part)
                answers = weighted(site.predicted(images), mix).float()
                results[part] = evaluation(answers, labels)
        return results

    def used(self, task: Task, site: SiteContext) -> dict[str, Predictor]:
        """Return the model that is used, with the class mix that its answers are multiplied by."""
        if not self.personal:
            return super().used(task, site)
        self._load(task, site)
        mix = self._mix(site)
        return {self.answer: Predictor(site.params(), class_mix=mix)}

    def _load(self, task: Task, site: SiteContext) -> None:
        if self.answer == "common":
            site.load(task.models["server"][0])
        else:
            self.load_tuned(task, site)

    def _mix(self, site: SiteContext) -> Tensor:
        """Return the site's class mix; without labels and bags from the loaded model's answers."""
        return own_mix(site.data, site.predicted(site.data.unlabelled))

    @abstractmethod
    def bag_steps(self, task: Task, site: SiteContext) -> Iterator[Step]:
        """Yield the mini-batches of a site with bags."""


def own_mix(data: SiteData, answers: Tensor) -> Tensor:
    """Return a site's class mix pi_k, float64 [C]: from its bags and labels, else from answers.

    answers: as `class_mix` takes them.
    """
    counts = torch.bincount(data.labels.cpu(), minlength=data.num_classes).double()
    if data.bagged:
        known = bags_of(data)
        sizes = torch.bincount(known.bag.cpu(), minlength=len(known.proportions)).double()
        counts = counts + sizes @ known.proportions.cpu().double()
    return class_mix(counts, answers)


def bags_of(data: SiteData) -> Bags:
    """Return the bags of a site that has some."""
    known = data.parts[BAGS].supervision
    assert isinstance(known, Bags), "a part of bags"
    return known


def shares_of(bags: Bags) -> Tensor:
    """Return pibar, each bag's share of the site's bagged inputs: float64 [M], sums to 1."""
    sizes = torch.bincount(bags.bag, minlength=len(bags.proportions)).double()
    return sizes / sizes.sum()
