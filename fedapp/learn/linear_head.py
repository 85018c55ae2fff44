"""A linear head over fixed features as a network, alone or added to another network's logits."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from fedapp.learn.features import FeatureMap, build_features
from fedapp.learn.metrics import predict_each
from fedapp.learn.networks.base import Draw, Features, Network
from fedapp.learn.params import Params, assign
from fedapp.learn.uncertainty import Normalise, inputs_per_pass

HEAD_WEIGHT, HEAD_BIAS, SCALE = "head.weight", "head.bias", "scale"
"""Names of the tensors of `FeatureHeadNetwork` that are solved for."""

Head = tuple[Tensor, Tensor]
"""Weight [C, d] and bias [C] of a linear head, float32."""


class FeatureHeadNetwork(Network):
    """Logits head(map(x)) + scale * network(x); without a second network, head(map(x)) alone.

    The softmax of such a sum is the normalised product of both answers, the network's raised to the
    power `scale`. (Logits that differ by one constant in all classes are the same answer.)
    """

    scale: Tensor

    def __init__(self, features: FeatureMap, num_classes: int, beside: Network | None) -> None:
        super().__init__()
        self.map = features
        self.head = nn.Linear(features.size, num_classes)
        self.dropout = nn.Dropout(0.0) if beside is None else beside.dropout
        self.features = features.size
        if beside is not None:
            self.features += beside.features
            self.network = beside
            self.register_buffer("scale", torch.ones(()))

    def trunk(self, x: Tensor) -> Features:
        """Compute the features, and run all layers of the network in front of its first dropout."""
        fixed: Tensor = self.map(x)
        return (fixed, *self.network.trunk(x)) if self._beside else (fixed,)

    def embed(self, features: Features, dropout: Draw | None = None) -> Tensor:
        """Return the features [n, d], followed by the second network's embedding, if any."""
        fixed, *others = features
        if not self._beside:
            return fixed
        return torch.cat([fixed, self.network.embed(tuple(others), dropout).float()], 1)

    def classify(self, embedding: Tensor) -> Tensor:
        """Run the heads of both networks: [n, features] -> logits float32 [n, C]."""
        size = self.head.in_features
        logits: Tensor = self.head(embedding[:, :size])
        if self._beside:
            logits = logits + self.scale * self.network.classify(embedding[:, size:])
        return logits

    @property
    def _beside(self) -> bool:
        return "network" in self._modules


@dataclass(frozen=True)
class FeatureHead:
    """Describes a network that answers by a linear head over fixed features.

    features: the name of the feature map.
    beside: whether the logits of the registry's network are added to those of the head.
    """

    features: str
    beside: bool = False

    def build(self, network: Network) -> FeatureHeadNetwork:
        """Return the network.

        `network`, built anew and on the CPU, becomes a part of it where it is used.
        """
        copied = deepcopy(network) if self.features == "network" else None
        features = build_features(self.features, network.inputs, network=copied)
        classes = network.head.out_features
        over = FeatureHeadNetwork(features, classes, network if self.beside else None)
        over.finds = network.finds
        return over

    def params(self, head: Head, features: FeatureMap) -> Params:
        """Return all tensors of a head over these features, with the feature map's own tensors."""
        own = {f"map.{name}": t.cpu().clone() for name, t in features.state_dict().items()}
        return {HEAD_WEIGHT: head[0], HEAD_BIAS: head[1], **own}


@torch.inference_mode()
def compute_features(features: FeatureMap, images: Tensor, normalise: Normalise) -> Tensor:
    """Return the features of n >= 0 images, float32 [n, d], on the images' device."""
    found = images.new_empty(len(images), features.size, dtype=torch.float32)
    step = inputs_per_pass(images.shape[1:])
    for start in range(0, len(images), step):
        batch = slice(start, start + step)
        found[batch] = features.of(normalise(images[batch]))
    return found


def answers_from_features(head: Head, sets: Sequence[Tensor], finds: bool = False) -> list[Tensor]:
    """Return a head's probabilities for sets of features [n, d]: float32 [n, C], on the CPU.

    They are equal to the bit to what the whole network answers to the images. finds: whether the
    outputs are findings rather than classes.
    """
    weight, bias = head
    network = FeatureHeadNetwork(_PrecomputedFeatures(weight.shape[1]), len(bias), None)
    network.finds = finds
    assign(network, {HEAD_WEIGHT: weight, HEAD_BIAS: bias})
    return predict_each(network.to(sets[0].device), sets, lambda features: features)


class _PrecomputedFeatures(FeatureMap):
    """A feature map whose inputs are features already."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    @classmethod
    def build(cls, inputs: tuple[int, ...], seed: int, network: Network | None) -> Self:
        """Build the map for vectors."""
        return cls(*inputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return x unchanged."""
        return x
