"""FedBN (Li et al. 2021): FedAvg, but batch norm stays at home, parameters and statistics.

Batch norms are found by module type. With `objective="fixmatch"` it is the paper's FixBN.
"""

from typing import ClassVar

from pydantic.dataclasses import dataclass
from torch import nn

from fedapp.core.errors import ConfigError
from fedapp.core.settings import CLOSED
from fedapp.learn.networks.parts import batch_norm_names
from fedapp.methods.averaging.base import ByServerOptimizer


@dataclass(frozen=True, config=CLOSED)
class FedBN(ByServerOptimizer):
    """No hyper-parameters beside those of local learning."""

    name: ClassVar[str] = "fedbn"
    unsupported: ClassVar = {"privacy.sums": ""}

    def kept_private(self, model: nn.Module) -> frozenset[str]:
        """Everything of every batch norm: weight, bias, running statistics, counter.

        Raises ConfigError where there is none: it would be FedAvg under another name.
        """
        if not (kept := batch_norm_names(model)):
            raise ConfigError(
                f"method.name = 'fedbn': {type(model).__name__} has no batch norm as it is set; "
                "use method.name=fedavg, or a network with batch norm (model.norm=batch)"
            )
        return kept


METHOD = FedBN
