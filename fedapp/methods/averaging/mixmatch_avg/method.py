"""MixMatch (Berthelot et al. 2019) at every site, averaged by FedAvg.

A site guesses each unlabelled image's label, as the sharpened mean of its answers to some weak
views. Then it mixes all its images, and their labels, in pairs (MixUp), and minimises

    CE(mixed labelled images) + lambda_u mean (softmax - mixed guess)^2   (`mixmatch`)

lambda_u rises linearly over the first rounds: the paper's rises over its first 16,000 steps. The
warm-up is supervised, as of all methods. FlexProtoFSSL's paper has it in its table of costs.
"""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedapp.data.augment import weak
from fedapp.data.sites import SiteData
from fedapp.ground.rng import numpy_stream
from fedapp.ground.settings import CLOSED, Count, Positive
from fedapp.learn.objectives import supervised
from fedapp.learn.training import Step
from fedapp.messages.protocol import Task
from fedapp.methods.averaging._averaging import WARM_UP, Averaging, work_of
from fedapp.methods.averaging.mixmatch_avg.mixmatch import mixing, mixmatch
from fedapp.methods.base import SiteContext


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class MixMatchAvg(Averaging):
    """Fields are MixMatch's hyper-parameters, defaults the paper's."""

    name: ClassVar[str] = "mixmatch_avg"

    views: Count = 2
    """K, weak views of an unlabelled image that a guess is of."""
    temperature: Positive = 0.5
    """T, of the guess; below 1 it becomes surer."""
    mixup: Annotated[float, Field(ge=0)] = 0.75
    """alpha of Beta(alpha, alpha), of which the shares in a mixed image are drawn; 0: no MixUp."""
    unlabelled_weight: Annotated[float, Field(ge=0)] = 75.0
    """lambda_u, what it rises to."""
    ramp_rounds: Count = 50
    """Rounds until lambda_u has risen."""

    @property
    def needs_images(self) -> bool:
        """Of weak views."""
        return True

    def needs_labels(self) -> str:
        """Sites learn from their guesses."""
        return ""

    def images_per_step(self, batch_size: int, data: SiteData) -> int:
        """A labelled image and all views of an unlabelled one for each of a batch."""
        return (1 + self.views) * batch_size

    def weight_in(self, number: int) -> float:
        """Return lambda_u in a round, 1 or later."""
        return self.unlabelled_weight * min(number / self.ramp_rounds, 1)

    def steps(self, task: Task, site: SiteContext) -> Iterator[Step]:
        """Cross entropy on D_s or, after the warm-up, MixMatch."""
        work, draws = work_of(task, site), site.stream("augment", task)
        if task.action == WARM_UP:
            return supervised(work)
        mixes = numpy_stream(site.seed, "mixup", task.when, site.data.site)
        return mixmatch(
            work,
            lambda images: weak(images, site.flip, draws),
            self.views,
            self.temperature,
            partial(mixing, alpha=self.mixup, draws=mixes),
            self.weight_in(task.round),
        )


METHOD = MixMatchAvg
