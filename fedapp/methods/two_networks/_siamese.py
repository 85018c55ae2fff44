"""What FedSiam's three methods have in common (Long et al.; docs/research/two_networks.md).

A site minimises L + beta J: the cross entropy of its labelled images, and how far the answers to
all its images are from those of the target network (`_target`). beta rises with the local epochs
that the site has done so far, which it remembers.
"""

import copy
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import nn

from fedapp.core.errors import ProtocolError
from fedapp.core.settings import CLOSED, Count, Share
from fedapp.data.sites import SiteData
from fedapp.learn.networks.base import Network
from fedapp.learn.networks.parts import layers_of
from fedapp.learn.objectives import supervised
from fedapp.learn.params import Params, Schema, assign, schema_of
from fedapp.learn.predictors import Predictor
from fedapp.learn.steps import Step
from fedapp.learn.training import descend
from fedapp.methods.averaging.base import WARM_UP, Averaging, work_of
from fedapp.methods.base import Arrived, SiteContext, SiteReport
from fedapp.methods.two_networks._target import (
    Distance,
    decay,
    inconsistency,
    ramp_weight,
    siamese,
    update_target,
)
from fedapp.protocol.messages import EVALUATE, SERVER_SITE, Evaluation, Reply, SiteFacts, Task

EPOCHS = "epochs"
"""What a site remembers: t, its local epochs so far."""
ONLINE = "online"
"""Role of the network that descends, where the target is another; the target is the model."""
REMEDY = "run the same version of fedapp on both sides"
"""What helps where a site does not send what its method asks for."""


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class Siamese(Averaging):
    """What a site minimises."""

    consistency: Distance = "mse"
    """How far two answers are apart: mse (Eq. 4 by the number of classes), squared_norm, kl."""
    consistency_weight: Annotated[float, Field(ge=0)] = 1.0
    """Largest weight of J; beta rises to it. 0: labelled images alone, without the target."""
    ramp_epochs: Count = 10
    """phi_l: local epochs of a site after which beta is as large as it gets."""
    labelled_repeat: Count = 1
    """How often each labelled image stands among those that a pass goes through."""

    def images_per_step(self, batch_size: int, data: SiteData) -> int:
        """Two views of each image of a batch."""
        return 2 * batch_size

    def weight(self, facts: SiteFacts, reply: Reply) -> float:
        """The number of images learned from: all of the site's, as in Eq. 2."""
        return super().weight(facts, reply) if self.consistency_weight else facts.labelled

    unsupported: ClassVar = {"split.labels": ""}
    """Sites learn from J alone (Eq. 8); without it the server learns by itself."""

    def memory(self, model: nn.Module, w_0: Params) -> Params:
        """The site's local epochs so far."""
        return {EPOCHS: torch.zeros((), dtype=torch.int64)}

    def steps(self, task: Task, site: SiteContext) -> Iterator[Step]:
        """Cross entropy on D_s: what the warm-up minimises."""
        return supervised(replace(work_of(task, site), labelled_repeat=self.labelled_repeat))

    def by_labels(self, task: Task) -> bool:
        """Whether one network is to learn, from labelled images alone."""
        return task.action == WARM_UP or not self.consistency_weight

    def learned(
        self, task: Task, site: SiteContext, target: Network, alpha: float | None
    ) -> tuple[float | None, Params]:
        """Train the context's model beside the target; return the loss and what to remember.

        alpha: the target's largest decay; None: it is the context's model itself. The server, which
        has labelled images, minimises L alone (Eq. 8).
        """
        before = epochs = int(site.memory[EPOCHS])
        largest = 0.0 if task.site == SERVER_SITE else self.consistency_weight

        def after(epoch: int) -> None:
            nonlocal epochs
            epochs = epoch
            if alpha is not None:
                update_target(target, site.model, decay(epoch, alpha))

        with site.drawing(task):
            steps = siamese(
                replace(work_of(task, site), labelled_repeat=self.labelled_repeat),
                target,
                site.view(task, "target view"),
                partial(inconsistency, distance=self.consistency),
                lambda epoch: largest * ramp_weight(epoch, self.ramp_epochs),
                before,
                after,
            )
            loss = descend(site.model, steps, site.training)
        return loss, {EPOCHS: torch.tensor(epochs)}


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class TwoNetworks(Siamese):
    """The target is a network of its own, a moving average of the online one.

    The target is the site's and the server's model, the one in use; the online network is a content
    beside it. Both are averaged.
    """

    extra_roles: ClassVar[tuple[str, ...]] = (ONLINE,)

    largest_decay: Share = 0.999
    """alpha_max: largest decay of the target."""

    unsupported: ClassVar = {"privacy.clip": "it sends a second network beside models"}

    def roles(self, model: nn.Module) -> Mapping[str, Schema]:
        """The online network."""
        return {ONLINE: schema_of(model.state_dict())}

    def site_round(self, task: Task, site: SiteContext) -> SiteReport:
        """Train the online network with the target behind it, or measure both.

        What learns from labelled images alone is one network, and becomes both.
        """
        if task.action == EVALUATE or self.by_labels(task):
            report = super().site_round(task, site)
            return replace(report, contents={ONLINE: report.params} if report.params else {})
        target = copy.deepcopy(site.model)
        assign(target, site.contents(task.models["server"][0]))
        site.load(task.models[ONLINE][0])
        loss, memory = self.learned(task, site, target, self.decay_in(task.round))
        if loss is None:  # no images to learn from
            return SiteReport()
        return SiteReport(
            replace(site, model=target).params(),
            contents={ONLINE: site.params()},
            learned=True,
            metrics={"loss": site.finite(loss, task)},
            memory=memory,
        )

    def decay_in(self, round_number: int) -> float:
        """Return the largest decay of the target in a round."""
        return self.largest_decay

    def measured(self, task: Task, site: SiteContext) -> dict[str, Evaluation]:
        """Measure the server's online network too."""
        results = super().measured(task, site)
        site.load(task.models[ONLINE][0])
        return results | site.evaluate("val", "test", answer=ONLINE)

    def used(self, task: Task, site: SiteContext, answer: str = "") -> dict[str, Predictor]:
        """Return the target, the site's own, or the online network."""
        if answer != ONLINE:
            return super().used(task, site, answer)
        site.load(task.models[ONLINE][0])
        return {answer: Predictor(site.params())}

    def check_contents(
        self, task: Task, reply: Reply, arrived: Mapping[str, Arrived], facts: SiteFacts
    ) -> None:
        """Who learned has sent its online network, all layers of it."""
        if not reply.learned:
            return
        if ONLINE not in arrived:
            raise ProtocolError(f"learned, but sent no {ONLINE} network; {REMEDY}")
        self.check_layers(task, reply, arrived)

    def check_layers(self, task: Task, reply: Reply, arrived: Mapping[str, Arrived]) -> None:
        """Check that the online network came whole. Raises ProtocolError."""
        if ONLINE in reply.parts:
            require_layers(arrived[ONLINE], layers_of(arrived[ONLINE].whole))


def require_layers(online: Arrived, asked: Collection[str]) -> None:
    """Check that these layers of a content travelled, whole, and no others; else ProtocolError."""
    layers = layers_of(online.whole)
    due = {name for layer in asked for name in layers[layer]}
    if online.came != due:
        sent = layers_of(online.came)
        whole = [layer for layer, names in sent.items() if names == layers[layer]]
        raise ProtocolError(
            f"sent {len(whole)} of {len(layers)} layers of its {ONLINE} network "
            f"({_listed(whole)}); asked were {len(asked)} ({_listed(asked)}); {REMEDY}"
        )


def _listed(layers: Collection[str]) -> str:
    return ", ".join(sorted(layers)) or "none"
