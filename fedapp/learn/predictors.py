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


def answer_of(
    predictors: Sequence[tuple[Network, Predictor]], images: Tensor, normalise: Normalise
) -> Tensor:
    """Return the probabilities of a site's answer, float32 [n, C], n >= 0, on the CPU.

    predictors: at least one, each with the network that holds its tensors, on the images' device.
    """
    weights = torch.tensor([one.weight for _, one in predictors], dtype=torch.float64)
    answers = []
    for network, one in predictors:
        plain = predict(network, images, normalise)
        answers.append(plain.double() if one.class_mix is None else weighted(plain, one.class_mix))
    return mixed(answers, weights).float()
