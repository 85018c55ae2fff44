"""FedAvg (McMahan et al. 2017): the mean of the sites' models, by numbers of images.

With `objective="fixmatch"` it is the paper's FixAvg; with all training images labelled
(`split.labels=all`) its FedAvg-SL.
"""

from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedapp.ground.settings import CLOSED
from fedapp.methods._averaging import ByObjective


@dataclass(frozen=True, config=CLOSED)
class FedAvg(ByObjective):
    """No hyper-parameters beside those of local learning."""

    name: ClassVar[str] = "fedavg"


METHOD = FedAvg
