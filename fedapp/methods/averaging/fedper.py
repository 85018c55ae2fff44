"""FedPer (Arivazhagan et al. 2019): the body is averaged, every site has a head of its own."""

from typing import ClassVar

from pydantic.dataclasses import dataclass
from torch import nn

from fedapp.core.settings import CLOSED
from fedapp.learn.networks.parts import head_names
from fedapp.methods.averaging.base import ByServerOptimizer


@dataclass(frozen=True, config=CLOSED)
class FedPer(ByServerOptimizer):
    """No hyper-parameters beside those of local learning."""

    name: ClassVar[str] = "fedper"

    def kept_private(self, model: nn.Module) -> frozenset[str]:
        """The classifier head."""
        return head_names(model)

    unsupported: ClassVar = {
        "privacy.sums": "",
        "split.labels": "every site's own head learns from labels of its own",
    }


METHOD = FedPer
