"""ProtoFSSL (Kim et al. 2022): sites teach each other by class prototypes.

The target of an unlabelled image is the sharpened mean of the answers by the helpers' prototypes.
Every answer is used. Distances are means of squared differences.
"""

from typing import ClassVar

from pydantic.dataclasses import dataclass
from torch import Tensor

from fedapp.core.settings import CLOSED, Positive
from fedapp.learn.prototypes import Distance, Prototypes
from fedapp.methods.base import SiteContext
from fedapp.methods.prototypes._prototypes import WithPrototypes


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class ProtoFSSL(WithPrototypes):
    """Fields are the method's hyper-parameters."""

    name: ClassVar[str] = "protofssl"

    distance: Distance = "mean_squared"
    """From an embedding to a prototype."""
    temperature: Positive = 0.5
    """T: a helper answer's probabilities are sharpened to the power 1 / T."""

    def thresholds(self, lent: Prototypes, site: SiteContext) -> Tensor:
        """0: every answer is used."""
        return lent.centres.new_zeros(lent.centres.shape[1])


METHOD = ProtoFSSL
