"""FedAvg (McMahan et al. 2017): the mean of the sites' models, by numbers of images.

With `objective="fixmatch"` it is the paper's FixAvg; with all training images labelled
(`split.labels=all`) its FedAvg-SL.

With `labelled_repeat` above 1 it is FedAvg++, with FixMatch too FedFixMatch, as FedSiam's tables
have them (Long et al. 2020): as many times the steps a round. Where `training.local_steps` sets the
steps, it is FedAvg again. In FedSiam's released code FixMatch's loss is taken of an output that is
detached, so without a gradient: there the unlabelled images teach nothing (`unlabelled_weight=0`).
"""

from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedapp.core.settings import CLOSED
from fedapp.learn.training import descend
from fedapp.methods.averaging._noisy_training import NoisyTraining, learned_with_noise
from fedapp.methods.averaging.base import ByServerOptimizer, aggregate_round, measurements
from fedapp.methods.base import ImageLevel, MethodState, Phases, Round, SiteContext, SiteReport
from fedapp.protocol.messages import EVALUATE, Task


@dataclass(frozen=True, config=CLOSED)
class FedAvg(ByServerOptimizer):
    """No hyper-parameters beside those of local learning.

    Its round stands here as it goes; `base` has what the methods that average share.
    """

    name: ClassVar[str] = "fedavg"
    unsupported: ClassVar = {"privacy.sums": ""}
    image_level: ClassVar[ImageLevel | None] = NoisyTraining()

    def server_round(self, state: MethodState, rnd: Round) -> Phases[MethodState]:
        """Send the cohort the server's model, average what it sends back, have all sites measure.

        The new model is sum_k n_k w_k / sum_k n_k over the sites that trained, n_k being how many
        images a site learned from (`weight`).
        """
        yield from aggregate_round(rnd, self.weight)
        yield measurements(rnd)
        return state

    def site_round(self, task: Task, site: SiteContext) -> SiteReport:
        """Train the server's model on the site's own images, and send it back; or measure it."""
        if task.action == EVALUATE:
            return SiteReport(evaluations=self.measured(task, site))
        site.load(task.models["server"][0])
        if site.protection is not None:
            return learned_with_noise(task, site)
        with site.drawing(task):
            steps = self.steps(task, site)
            loss = descend(site.model, steps, site.training, self.penalty(site.model))
        return site.trained(loss, task)


METHOD = FedAvg
