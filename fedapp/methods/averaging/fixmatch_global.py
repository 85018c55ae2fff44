"""FixMatch with the received model as the teacher; its labels are made once per task.

Known as "global pseudo-labels": FixMatch (Sohn et al. 2020) in which the averaged model that a site
received, not the one in training, names the unlabelled images. SemiFL (Diao et al. 2022) labels
once per round from the received model too. Here:

- Teacher: the received model in evaluation mode, on the images as they are.
- Label: its top class, where its probability is at least `confidence`.
- A site minimises CE(D_s, weak views) + lambda_u CE(strong view, label), steps as of FixMatch: a
  step's mean is over all its unlabelled images, and those without a label add zero.

The warm-up is supervised, as of all methods.
"""

from collections.abc import Iterator
from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedapp.data.sites import SiteData
from fedapp.ground.settings import CLOSED
from fedapp.learn.objectives import supervised, taught
from fedapp.learn.training import Step
from fedapp.messages.protocol import Task
from fedapp.methods.averaging._averaging import WARM_UP, WithPseudoLabels, work_of
from fedapp.methods.base import SiteContext


@dataclass(frozen=True, config=CLOSED)
class FixMatchGlobal(WithPseudoLabels):
    """No hyper-parameters beside those of all methods with pseudo-labels."""

    name: ClassVar[str] = "fixmatch_global"

    def images_per_step(self, batch_size: int, data: SiteData) -> int:
        """A labelled image and one view of an unlabelled one for each of a batch."""
        return 2 * batch_size

    def steps(self, task: Task, site: SiteContext) -> Iterator[Step]:
        """Cross entropy on D_s or, after the warm-up, on all that has a label; see above."""
        work = work_of(task, site)
        if task.action == WARM_UP:
            return supervised(work)
        answers = site.predicted(site.data.unlabelled)  # the network holds the received model
        top, labels = answers.to(site.device).max(1)
        sure = top >= self.confidence
        return taught(work, *self.views(task, site), labels, sure, self.unlabelled_weight)


METHOD = FixMatchGlobal
