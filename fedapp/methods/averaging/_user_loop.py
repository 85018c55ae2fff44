"""FedAvg around a training loop that a user already has."""

from abc import abstractmethod
from typing import ClassVar, Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedapp.core.settings import CLOSED
from fedapp.learn.networks.base import Network
from fedapp.learn.training import freeze_batch_norm
from fedapp.methods.averaging.base import FromLabelled, budget_of
from fedapp.methods.base import SiteContext, SiteReport
from fedapp.protocol.messages import EVALUATE, Task


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class OwnLoop(FromLabelled):
    """FedAvg around one's own training loop: a subclass defines a `name` and `fit`.

    The server averages the models that the sites' loops trained, weighted by numbers of labelled
    images (`weight`). By default a site answers with its own model as trained last (`answer`). Of
    the settings in `training` the loop receives only the epochs.
    """

    answer: Literal["common", "tuned"] = "tuned"
    """Which model a site uses: the server's (common), or its own as trained last (tuned)."""

    unsupported: ClassVar = {"training.uneven": "the loop is the user's own"}

    @abstractmethod
    def fit(
        self, network: Network, images: Tensor, labels: Tensor, unlabelled: Tensor, epochs: int
    ) -> float | None:
        """Train the network in place; return a loss for display, or None.

        network: in training mode, with the server's weights. images: a site's labelled inputs,
        float32 [n, ...], standardised; labels: int64 [n], in [0, C); unlabelled: float32 [m, ...].
        n is at least 1, m may be 0; all are on the network's device. epochs: passes to make, at
        least 1. Use torch's global random generator: it is seeded by the seed, the round and the
        site.
        """

    def site_round(self, task: Task, site: SiteContext) -> SiteReport:
        """Run the loop on the server's model; a site without labels does not train."""
        if task.action == EVALUATE:
            return super().site_round(task, site)
        epochs, _ = budget_of(task, site.training)
        if not (len(site.data.labels) and epochs):
            return SiteReport()
        site.load(task.models["server"][0])
        with torch.no_grad():
            images, unlabelled = map(site.normalise, (site.data.labelled, site.data.unlabelled))
        site.model.train()
        if len(images) == 1:
            freeze_batch_norm(site.model)
        with site.drawing(task):
            loss = self.fit(site.model, images, site.data.labels, unlabelled, epochs)
        return site.trained(0.0 if loss is None else loss, task)
