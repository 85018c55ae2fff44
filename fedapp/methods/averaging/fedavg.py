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

from fedapp.ground.settings import CLOSED
from fedapp.methods.averaging.base import ByServerOptimizer


@dataclass(frozen=True, config=CLOSED)
class FedAvg(ByServerOptimizer):
    """No hyper-parameters beside those of local learning."""

    name: ClassVar[str] = "fedavg"
    sums_suffice: ClassVar[bool] = True
    image_level: ClassVar[bool] = True


METHOD = FedAvg
