"""What a site answers with: one network, or a mixture of several, each times a class mix."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedapp.learn.metrics import predict
from fedapp.learn.networks.base import Network
from fedapp.learn.params import Params
from fedapp.learn.priors import mixed, weighted
from fedapp.learn.uncertainty import Normalise


@dataclass(frozen=True, eq=False)
class Predictor:
    """A network and how its probabilities enter a site's answer.

    params: all of its tensors. weight: its share in the answer; those of a site sum to 1.
    class_mix: float64 [C], what they are multiplied by (`priors.weighted`); None: as they are.
    """

    params: Params
    weight: float = 1.0
    class_mix: Tensor | None = None

    def times_mix(self, plain: Tensor) -> Tensor:
        """Return the network's probabilities [n, C] times the class mix, float64, rows sum to 1."""
        return plain.double() if self.class_mix is None else weighted(plain, self.class_mix)


def answer_of(
    predictors: Sequence[tuple[Network, Predictor]], images: Tensor, normalise: Normalise
) -> Tensor:
    """Return the probabilities of a site's answer, float32 [n, C], n >= 0, on the CPU.

    predictors: at least one, each with the network that holds its tensors, on the images' device.
    """
    plain = [predict(network, images, normalise) for network, _ in predictors]
    return combined([one for _, one in predictors], plain)


def combined(predictors: Sequence[Predictor], plain: Sequence[Tensor]) -> Tensor:
    """Return a site's answer, float32 [n, C]; plain: each network's probabilities [n, C]."""
    weights = torch.tensor([one.weight for one in predictors], dtype=torch.float64)
    answers = [one.times_mix(its) for one, its in zip(predictors, plain, strict=True)]
    return mixed(answers, weights).float()
