"""FlexProtoFSSL (Chen, Xie, Qu 2024): ProtoFSSL with a threshold for each class.

Before it learns, a site counts, for each class, about how many of its unlabelled images the
helpers' prototypes are confident. The thresholds follow from these counts
(`prototypes.flexible_thresholds`). A helper's answer contributes to a target if it exceeds the
threshold of its class. `docs/research/prototypes.md` says what is done where the paper is silent or
contradicts itself.
"""

from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedapp.core.settings import CLOSED
from fedapp.learn.prototypes import (
    Prototypes,
    embedded,
    flexible_thresholds,
    learning_states,
    log_answers,
)
from fedapp.methods.base import SiteContext
from fedapp.methods.prototypes._prototypes import WithPrototypes


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class FlexProto(WithPrototypes):
    """Fields are the method's hyper-parameters."""

    name: ClassVar[str] = "flexproto"

    cap: Annotated[float, Field(ge=0, lt=1)] = 0.92
    """tau: the largest threshold, and the probability above which an image counts as confident.
    With 1 none would be, and all answers would be used."""

    def thresholds(self, lent: Prototypes, site: SiteContext) -> Tensor:
        """T(k), by the mean of the helpers' answers about all unlabelled images (Eqs. 6 to 9)."""
        images = site.data.unlabelled
        embeddings = embedded(site.model, images, site.normalise)
        answers = log_answers(embeddings, lent, self.distance).exp().mean(0)
        return flexible_thresholds(learning_states(answers, self.cap), len(images), self.cap)


METHOD = FlexProto
