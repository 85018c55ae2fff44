"""FedAvg (McMahan et al. 2017): the mean of the sites' models, by numbers of images.

With `objective="fixmatch"` it is the paper's FixAvg; with all training images labelled
(`split.labels=all`) its FedAvg-SL.

With `labelled_repeat` above 1 it is FedAvg++, with FixMatch too FedFixMatch, as FedSiam's tables
have them (Long et al. 2020): as many times the steps a round. Where `training.local_steps` sets the
steps, it is FedAvg again. In FedSiam's released code FixMatch's loss is taken of an output that is
detached, so without a gradient: there the unlabelled images teach nothing (`as_official`).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedapp.ground.settings import CLOSED
from fedapp.learn.training import Step
from fedapp.messages.protocol import Task
from fedapp.methods._averaging import ByObjective
from fedapp.methods.base import SiteContext


@dataclass(frozen=True, config=CLOSED)
class FedAvg(ByObjective):
    """No hyper-parameters beside those of local learning."""

    name: ClassVar[str] = "fedavg"

    as_official: bool = False
    """As in FedSiam's released code: the unlabelled images' loss has no gradient."""

    def __post_init__(self) -> None:
        if self.as_official and self.objective == "supervised":
            raise ValueError(
                "as_official is about objective=fixmatch: here it would change nothing"
            )

    def steps(self, task: Task, site: SiteContext) -> Iterator[Step]:
        """As of all that share the objectives; a loss without a gradient has the weight 0."""
        if self.as_official:
            return replace(self, as_official=False, unlabelled_weight=0.0).steps(task, site)
        return super().steps(task, site)


METHOD = FedAvg
