"""FedRoD (Chen and Chao 2022), linear: one common predictor, one personal on top of it.

The common network is averaged. Its loss is the balanced softmax (Ren et al. 2020): the cross
entropy of logits + ln pi_k. Here pi_k are the site's class shares. So all sites aim at one
predictor, for which all classes are equally frequent. A second head stays at the site. It sees the
features of the common network and adds its logits to the common ones; the sum meets the plain cross
entropy, whose gradient reaches the personal head alone. The personal answer is the softmax of that
sum. Both are trained in the same steps, on the labelled images.

The personal answer stands on the site's own network as it trained it last, as that of a tuned
FedAvg does. The sum of two linear heads is a linear head, so the two become one for measuring.

The authors' code is not public. What is not theirs:

- The personal head starts from zero: until it learns, the personal answer is the common one.
- pi_k counts one more image, spread over all classes (`priors.class_mix`): without it, a class of
  which a site has no label would have the logit minus infinity.
- DEVIATION: one optimiser steps all tensors at once; a public re-implementation (PFLlib) steps the
  common network first, then the head. The head sees the same features either way.
"""

import copy
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedapp.core.settings import CLOSED
from fedapp.learn.networks.parts import head_names
from fedapp.learn.objectives import supervised
from fedapp.learn.params import Params
from fedapp.learn.training import descend
from fedapp.methods.averaging.base import FromLabelled, work_of
from fedapp.methods.base import SiteContext, SiteReport
from fedapp.protocol.messages import EVALUATE, Task


@dataclass(frozen=True, config=CLOSED)
class FedRoD(FromLabelled):
    """No hyper-parameters beside those of local learning."""

    name: ClassVar[str] = "fedrod"
    unsupported: ClassVar = {"privacy.sums": ""}

    answer: Literal["common", "tuned"] = "tuned"
    """What a site uses: the server's model, or the personal answer ("tuned")."""

    def memory(self, model: nn.Module, w_0: Params) -> Params:
        """The personal head, from zero on."""
        return {name: torch.zeros_like(w_0[name]) for name in head_names(model)}

    def site_round(self, task: Task, site: SiteContext) -> SiteReport:
        """Train the common network and the personal head; or measure."""
        if task.action == EVALUATE:
            return super().site_round(task, site)
        site.load(task.models["server"][0])
        head = personal_head(site)
        work = work_of(task, site)
        shift, also = work.mix.log().to(site.device, torch.float32), work.shift

        def loss_of(networks: Any, images: Tensor, labels: Tensor) -> Tensor:
            network, own = networks
            features = network.embed(network.trunk(images))
            personal = also(own(features.detach().float()))
            return rod_loss(network.classify(features), personal, labels, shift)

        both = nn.ModuleList([site.model, head])
        with site.drawing(task):
            loss = descend(both, supervised(work, loss_of), site.training)
        own = {f"head.{name}": tensor.cpu().clone() for name, tensor in head.state_dict().items()}
        return site.trained(loss, task, own)

    def load_tuned(self, task: Task, site: SiteContext) -> None:
        """Load the site's own network; its head is the sum of both heads."""
        super().load_tuned(task, site)
        head = personal_head(site)
        with torch.no_grad():
            site.model.head.weight.add_(head.weight)
            site.model.head.bias.add_(head.bias)


def personal_head(site: SiteContext) -> nn.Linear:
    """Return the site's own head, on its device."""
    head = copy.deepcopy(site.model.head)
    with torch.no_grad():
        for name, tensor in head.named_parameters():
            tensor.copy_(site.memory[f"head.{name}"])
    return head


def rod_loss(common: Tensor, personal: Tensor, labels: Tensor, shift: Tensor) -> Tensor:
    """Return CE(common + shift) + CE(common + personal), the second for `personal` alone.

    common, personal: logits [n, C], n >= 1. shift: ln pi_k [C].
    """
    own = F.cross_entropy(common.detach() + personal, labels)
    return F.cross_entropy(common + shift, labels) + own


METHOD = FedRoD
