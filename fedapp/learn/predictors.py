"""What a site answers with: one network or several, with a linear head or with prototypes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from fedapp.learn.class_priors import mean_answer, reweighted
from fedapp.learn.linear_head import FeatureHead
from fedapp.learn.metrics import predict
from fedapp.learn.networks.base import Network
from fedapp.learn.params import Params
from fedapp.learn.prototypes import Distance, PrototypeHead, Prototypes
from fedapp.learn.uncertainty import Normalise


@dataclass(frozen=True, eq=False)
class Predictor:
    """A network, and how its probabilities enter the answer of a site.

    params: all tensors of the network.
    weight: its share in the answer; the weights of a site's predictors sum to 1.
    class_mix: float64 [C], or [F, 2] for findings, by which the probabilities are multiplied
        (`class_priors.reweighted`); None: they are used unchanged.
    distance: the head's tensors are prototypes (`PrototypeHead`) that answer by this distance;
    None: the head is linear.
    form: how the network becomes an answer over fixed features; None: it is used unchanged.
    """

    params: Params
    weight: float = 1.0
    class_mix: Tensor | None = None
    distance: Distance | None = None
    form: FeatureHead | None = None

    def shape(self, network: Network) -> Network:
        """Give a network, built anew and on the CPU, this predictor's head or form; return it."""
        if self.distance is not None:
            classes, features = network.head.weight.shape
            network.head = PrototypeHead(features, classes, self.distance)
        return network if self.form is None else self.form.build(network)

    def load_into(self, network: Network) -> Network:
        """Give a network, built anew and on the CPU, this predictor's head or form and tensors."""
        network = self.shape(network)
        network.load_state_dict(self.params)
        return network

    def reweight(self, plain: Tensor) -> Tensor:
        """Return the network's probabilities [n, C] times the class mix, float64."""
        return plain.double() if self.class_mix is None else reweighted(plain, self.class_mix)


@contextmanager
def by_prototypes(network: Network, prototypes: Prototypes, distance: Distance) -> Iterator[None]:
    """Within the context, a network answers by its distances to prototypes [C, d]."""
    head = network.head
    network.head = PrototypeHead.of(prototypes.to(head.weight.device), distance)
    try:
        yield
    finally:
        network.head = head


def answer_of(
    predictors: Sequence[tuple[Network, Predictor]], images: Tensor, normalise: Normalise
) -> Tensor:
    """Return the probabilities of a site's answer, float32 [n, C], n >= 0, on the CPU.

    predictors: at least one, each with the network that holds its tensors, on the images' device.
    """
    plain = [predict(network, images, normalise) for network, _ in predictors]
    return combined([one for _, one in predictors], plain)


def combined(predictors: Sequence[Predictor], plain: Sequence[Tensor]) -> Tensor:
    """Return a site's answer, float32 [n, C]. plain: the probabilities of each network, [n, C]."""
    weights = torch.tensor([one.weight for one in predictors], dtype=torch.float64)
    answers = [one.reweight(its) for one, its in zip(predictors, plain, strict=True)]
    return mean_answer(answers, weights).float()
