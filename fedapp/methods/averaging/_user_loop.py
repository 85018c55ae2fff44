"""A training loop that a user has already, at every site of a federation."""

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
    """FedAvg around one's own loop: a class made from this has a `name` and a `fit`.

    The server averages what the sites' loops bring, by numbers of labelled images (`weight`); what
    a site answers with is its own model after its last visit (`answer`), and models lie in the pool
    as any method's. Of `training`, the loop is told the epochs alone.
    """

    answer: Literal["common", "tuned"] = "tuned"
    """What a site uses: the server's model, or its own after it trained that one last."""

    unsupported: ClassVar = {"training.uneven": "the loop is the user's own"}

    @abstractmethod
    def fit(
        self, network: Network, images: Tensor, labels: Tensor, unlabelled: Tensor, epochs: int
    ) -> float | None:
        """Train the network in place; return a loss to be shown, None without one.

        network: in training mode, with the server's weights. images: a site's labelled inputs,
        float32 [n, ...], standardised; labels: int64 [n], in [0, C); unlabelled: float32 [m, ...].
        n is 1 or more, m may be 0; all are on the network's device. epochs: passes asked for, 1 or
        more. Draw from torch's global generator: it is keyed by seed, round and site.
        """

    def site_round(self, task: Task, site: SiteContext) -> SiteReport:
        """Let the loop train the server's model; a site without labels trains nothing."""
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
