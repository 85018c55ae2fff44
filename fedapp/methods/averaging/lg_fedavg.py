"""LG-FedAvg (Liang et al. 2019): every site has a body of its own, the head is averaged.

As in the paper: local representation, global head. The official CIFAR script shares the other way
round.
"""

from typing import ClassVar

from pydantic.dataclasses import dataclass
from torch import nn

from fedapp.core.settings import CLOSED
from fedapp.learn.networks.parts import head_names
from fedapp.methods.averaging.base import ByServerOptimizer


@dataclass(frozen=True, config=CLOSED)
class LgFedAvg(ByServerOptimizer):
    """No hyper-parameters beside those of local learning."""

    name: ClassVar[str] = "lg_fedavg"

    def kept_private(self, model: nn.Module) -> frozenset[str]:
        """All but the classifier head, batch norms included."""
        return frozenset(model.state_dict()) - head_names(model)

    unsupported: ClassVar = {
        "privacy.sums": "",
        "split.labels": "every site's own body learns from labels of its own",
    }


METHOD = LgFedAvg
