"""A toy: a site has a second network beside the shared one; what changed most is uploaded.

The second network is a running mean of what the site trained. A step counter is remembered too.
"""

from dataclasses import replace
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import nn

from fedapp.core.settings import CLOSED
from fedapp.learn.params import Params
from fedapp.methods.averaging.base import FromLabelled
from fedapp.methods.base import Sent, SiteContext, SiteReport
from fedapp.protocol.messages import MODEL, Task


@dataclass(frozen=True, config=CLOSED)
class ToyLayers(FromLabelled):
    name: ClassVar[str] = "toy_layers"

    share: float = 0.5
    """Of the tensors, by length of their change."""

    def memory(self, model: nn.Module, w_0: Params) -> Params:
        return {f"mean.{name}": t for name, t in w_0.items()} | {"steps": torch.tensor(0)}

    def site_round(self, task: Task, site: SiteContext) -> SiteReport:
        report = super().site_round(task, site)
        if report.params is None:
            return report
        base = site.contents(task.models["server"][0])
        mean = {n: site.memory[f"mean.{n}"].lerp(t, 0.5) if t.is_floating_point() else t
                for n, t in report.params.items()}  # fmt: skip
        lengths = {n: (t - base[n]).double().norm().item() for n, t in report.params.items()}
        most = sorted(lengths, key=lambda n: (-lengths[n], n))[: round(self.share * len(base))]
        memory = {f"mean.{name}": t for name, t in mean.items()}
        memory["steps"] = site.memory["steps"] + 1
        return replace(
            report, sent={MODEL: Sent(frozenset(most), task.models["server"][0])}, memory=memory
        )


METHOD = ToyLayers
