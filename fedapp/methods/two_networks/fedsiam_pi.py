"""FedSiam-Pi (Long et al.): the target is the online network itself, seen a second time.

Both passes have views and dropout of their own; no gradient flows through the second. One network
travels, as in FedAvg: tau = 0 and alpha = 0 of FedSiam.
"""

from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedapp.core.settings import CLOSED
from fedapp.methods.base import SiteContext, SiteReport
from fedapp.methods.two_networks._siamese import Siamese
from fedapp.protocol.messages import EVALUATE, Task


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class FedSiamPi(Siamese):
    """No hyper-parameters beside those of all FedSiam."""

    name: ClassVar[str] = "fedsiam_pi"

    def site_round(self, task: Task, site: SiteContext) -> SiteReport:
        """Train the one network, or measure it."""
        if task.action == EVALUATE or self.by_labels(task):
            return super().site_round(task, site)
        site.load(task.models["server"][0])
        loss, memory = self.learned(task, site, site.model, None)
        return site.trained(loss, task, memory)


METHOD = FedSiamPi
