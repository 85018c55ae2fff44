"""FedSem (Albaseer et al. 2020) as FedSiam's paper has it: labels, then pseudo-labels for all.

For `labelled_rounds` rounds sites learn from their labelled images, as in FedAvg. Then every site
gives each of its unlabelled images the top class of the server's model, once and without a
threshold, and from there on all images are learned from alike.

A site remembers the model that labelled its images. One that has none, since it came later or lost
it, labels with the model that it is sent when it next learns.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedapp.core.settings import CLOSED, Count
from fedapp.data.sites import Part
from fedapp.learn.metrics import count_pseudo_labels
from fedapp.learn.objectives import supervised
from fedapp.learn.params import Params, assign
from fedapp.learn.steps import Step
from fedapp.methods.averaging.base import Averaging, work_of
from fedapp.methods.base import MethodState, Phases, Round, SiteContext, SiteReport
from fedapp.protocol.messages import EVALUATE, Reply, SiteFacts, Task

LABEL = "label"
"""Action of a task that gives a site's unlabelled images their labels."""
TEACHER, KNOWN = "teacher.", "known"
"""What a site remembers: tensors of the model that labels its images, and whether it has one."""


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class FedSem(Averaging):
    """When the images are labelled."""

    name: ClassVar[str] = "fedsem"

    labelled_rounds: Count = 30
    """Rounds of learning from labelled images alone, before all others get their labels."""
    labelled_repeat: Count = 1
    """How often each labelled image stands among those that a pass goes through."""

    def memory(self, model: nn.Module, w_0: Params) -> Params:
        """The model that labels the site's images; w_0 stands for none."""
        teacher = {TEACHER + name: tensor for name, tensor in w_0.items()}
        return {**teacher, KNOWN: torch.zeros((), dtype=torch.int64)}

    def weight(self, facts: SiteFacts, reply: Reply) -> float:
        """The number of images that the site learned from."""
        return facts.labelled + (facts.unlabelled if self._all_images(reply.round) else 0)

    def server_round(self, state: MethodState, rnd: Round) -> Phases[MethodState]:
        """As FedAvg; before the first round of all images every site labels its own."""
        if rnd.number == self.labelled_rounds + 1:
            yield [rnd.task(site, LABEL, server=[rnd.pool.common()]) for site in rnd.sites]
        return (yield from super().server_round(state, rnd))

    def site_round(self, task: Task, site: SiteContext) -> SiteReport:
        """Learn, label or measure."""
        if task.action == EVALUATE or not self._all_images(task.round):
            return super().site_round(task, site)
        teacher = None if int(site.memory[KNOWN]) else self._teacher(task, site)
        if task.action != LABEL:
            report = super().site_round(task, site)
            return replace(report, memory=teacher) if report.learned else report
        soft, audit = self._answers(task, site), site.data.audit
        metrics = {}
        if audit is not None:
            wrong, total = audit.pseudo_label_errors(soft.argmax(1))
            metrics = {"pseudo_wrong": wrong, "pseudo_total": total}
        return SiteReport(metrics=metrics, memory=teacher, pseudo=count_pseudo_labels(soft, audit))

    def steps(self, task: Task, site: SiteContext) -> Iterator[Step]:
        """Cross entropy on D_s or, from then on, on all images."""
        work = work_of(task, site)
        if not self._all_images(task.round):
            return supervised(replace(work, labelled_repeat=self.labelled_repeat))
        labels = self._answers(task, site).argmax(1).to(site.device)
        site.load(task.models["server"][0])
        data, repeat = site.data, self.labelled_repeat
        images = torch.cat([*[data.labelled] * repeat, data.unlabelled])
        everything = Part(images, torch.cat([*[data.labels] * repeat, labels]))
        return supervised(replace(work, data=data.with_parts(labelled=everything)))

    def _all_images(self, round_number: int) -> bool:
        return round_number > self.labelled_rounds

    def _teacher(self, task: Task, site: SiteContext) -> Params:
        """Return what to remember of the server's model."""
        received = site.contents(task.models["server"][0])
        teacher = {TEACHER + name: tensor for name, tensor in received.items()}
        return {**teacher, KNOWN: torch.ones((), dtype=torch.int64)}

    def _answers(self, task: Task, site: SiteContext) -> Tensor:
        """Return what the labelling model says of the unlabelled images, softmax [n_u, C]."""
        if int(site.memory[KNOWN]):
            tensors = {n: t for n, t in site.memory.items() if n.startswith(TEACHER)}
            assign(site.model, {n.removeprefix(TEACHER): t for n, t in tensors.items()})
        else:
            site.load(task.models["server"][0])
        return site.predicted(site.data.unlabelled)


METHOD = FedSem
