"""A toy: sites share the mean features of their classes; a site asks its peers' means.

No model travels. The features are those of w_0, which all have.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedapp.learn.metrics import evaluation
from fedapp.learn.params import Schema
from fedapp.methods.base import Method, MethodState, Round, SiteContext, SiteReport
from fedapp.protocol.messages import EVALUATE, Reply, Task

MEANS = "means"


@dataclass(frozen=True)
class ToyMeans(Method[MethodState]):
    name: ClassVar[str] = "toy_means"

    def server_round(
        self, state: MethodState, rnd: Round
    ) -> Generator[Sequence[Task], Sequence[Reply], MethodState]:
        yield [rnd.task(site, "train") for site in sorted(rnd.cohort)]
        known = {MEANS: [rnd.pool.latest(site, MEANS) for site in rnd.pool.having(MEANS)]}
        yield [rnd.task(site, EVALUATE, **known) for site in rnd.sites]
        return state

    def kept_private(self, model: nn.Module) -> frozenset[str]:
        return frozenset(model.state_dict())

    def roles(self, model: nn.Module) -> Mapping[str, Schema]:
        classes, features = model.head.weight.shape
        floats = torch.float32
        return {MEANS: {"means": ((classes, features), floats), "mask": ((classes,), floats)}}

    def site_round(self, task: Task, site: SiteContext) -> SiteReport:
        site.load(task.own)
        if task.action != EVALUATE:
            return SiteReport(contents={MEANS: self._means(site)}, learned=True)
        peers = [site.contents(ref) for ref in task.models[MEANS] if ref.site != site.data.site]
        count = sum(peer["mask"] for peer in peers).clamp_min(1e-9)
        means = sum(peer["means"] * peer["mask"][:, None] for peer in peers) / count[:, None]
        found = {}
        for part in ("val", "test"):
            images, labels = site.labelled_part(part)
            near = -torch.cdist(features_of(images, site), means)
            near[:, count < 0.5] = -1e9  # nobody has such images
            found[part] = evaluation(near.softmax(1), labels)
        return SiteReport(evaluations=found)

    def _means(self, site: SiteContext) -> dict[str, Tensor]:
        of = site.one_hot(site.data.labels)  # [n, C]
        sums, count = of.T @ features_of(site.data.labelled, site), of.sum(0)
        return {"means": sums / count.clamp_min(1)[:, None], "mask": (count > 0).float()}


@torch.inference_mode()
def features_of(images: Tensor, site: SiteContext) -> Tensor:
    model = site.model.eval()
    return model.embed(model.trunk(site.normalise(images))).float()


METHOD = ToyMeans
