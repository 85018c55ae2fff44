"""FedSiam-MT (Long et al.): a mean teacher at every site, and the server averages both networks.

A site begins with the server's online network and target, and sends back both, whole: tau = 1 of
FedSiam. Sites and server answer with the target.
"""

from typing import ClassVar

from pydantic.dataclasses import dataclass

from fedapp.core.settings import CLOSED
from fedapp.methods.two_networks._siamese import TwoNetworks


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class FedSiamMt(TwoNetworks):
    """No hyper-parameters beside those of two networks."""

    name: ClassVar[str] = "fedsiam_mt"


METHOD = FedSiamMt
