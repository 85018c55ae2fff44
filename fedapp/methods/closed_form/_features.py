"""Which fixed features a closed form is of, by name, and coordinates in which noise harms little.

Noise is as strong in every direction, while a few directions of features vary much and most hardly:
the second are drowned. So where single images are protected features are first turned and
stretched, until those of made-up images vary nearly alike in all directions. These images are
random fields, whose waves are the weaker the shorter they are, as in pictures of the world (Field
1987); of inputs that are no images, independent normal numbers. Nobody's data is in them, so that
they cost nothing, and everybody draws the same. All that a protected site has of its images is in
these coordinates.
"""

from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated, Final, Self

import numpy as np
import torch
from pydantic import AfterValidator
from torch import Tensor

from fedapp.core.errors import ConfigError, Incompatibility
from fedapp.core.rng import numpy_stream
from fedapp.data.inputs import normalise
from fedapp.data.sites import SiteData
from fedapp.learn.features import FeatureMap, LearnedFeatures, build_features, feature_class
from fedapp.learn.linear_head import Head
from fedapp.learn.networks.base import Network
from fedapp.methods.incompatibilities import Conditions

FROZEN = "network"
"""The name of the features of a frozen network."""
NO_FEATURES: Final = "none"
"""In place of a name of features: there is no closed form."""


def _known(name: str) -> str:
    try:
        feature_class(name)
    except ConfigError as error:  # as a value's fault, so that the setting is named
        raise ValueError(str(error)) from error
    return name


FeatureName = Annotated[str, AfterValidator(_known)]
"""Type of a setting that names features."""
FeatureNameOrNone = Annotated[
    str, AfterValidator(lambda name: name if name == NO_FEATURES else _known(name))
]
"""The same, or `NO_FEATURES`."""


def feature_incompatibilities(name: str, conditions: Conditions) -> list[Incompatibility]:
    """Return the inputs, or the network, of which features cannot be had."""
    if name == NO_FEATURES:
        return []
    found, network = [], conditions.model
    if conditions.inputs and (rule := feature_class(name).misfit(conditions.inputs)):
        found.append(Incompatibility(conditions.size, rule))
    if name == FROZEN and network is not None:
        if ":" not in network.name and not getattr(network, "weights_sha256", ""):
            rule = "`network` features need a trained network: set model.weights, or take hog"
            found.append(Incompatibility("model.name", rule))
    return found


def learned_features(name: str) -> str:
    """Return why features do not go with protected images, and the remedy; empty: they do."""
    if not issubclass(feature_class(name), LearnedFeatures):
        return ""
    return f"{name} features are learned from images: take hog"


def features_for(name: str, network: Network) -> FeatureMap:
    """Return the features of this name for what a network takes, on the network's device.

    A frozen network's are those of a copy: the network itself goes on to learn.
    """
    copied = deepcopy(network) if name == FROZEN else None
    return build_features(name, network.inputs, network=copied).to(network.head.weight.device)


IMAGES, AT_ONCE = 2000, 100
"""Images that are made up, and how many at a time."""
GREY, CONTRAST = 0.5, 0.25
"""Mean and standard deviation of their pixels, of 1."""
EVEN = 0.1
"""Added to the variance of every direction, in mean variances, before it is evened."""
SPREAD = 0.5
"""Root mean square of a made-up image's distance from their mean: with it, few others reach 1."""

_MADE: dict[object, "Coordinates"] = {}
"""Those that this process made last: all its sites ask for the same."""


@dataclass(frozen=True, eq=False)
class Coordinates:
    """c = turned (f - origin) of features f.

    origin: [d]. turned: [d, d], symmetric. Both float64, on the CPU.
    """

    origin: Tensor
    turned: Tensor

    @classmethod
    def of(cls, mean: Tensor, covariance: Tensor) -> Self:
        """Return those of made-up images with this mean [d] and covariance [d, d]."""
        values, vectors = torch.linalg.eigh(covariance)
        values = values.clamp_min(0)
        # Where all are alike, there is nothing to be evened.
        stretched = 1 / (values + EVEN * values.mean().clamp_min(1e-12)).sqrt()
        length = (values * stretched.square()).sum().clamp_min(1e-12).sqrt()
        return cls(mean, (vectors * stretched * (SPREAD / length)) @ vectors.T)

    @staticmethod
    def made(features: FeatureMap, data: SiteData, seed: int, known: str) -> "Coordinates":
        """Return those of a map of features for inputs as a site has them.

        known: what the map depends on, by which they are found again.
        """
        key = known, data.inputs, data.mean, data.std, seed
        if key not in _MADE:
            _MADE.clear()
            _MADE[key] = Coordinates.of(*_moments(features, data, seed))
        return _MADE[key]

    def seen(self, features: Tensor) -> Tensor:
        """Return coordinates of features [n, d], float32 on the same device.

        Those that are NaN or infinite become 0, so that one image spoils no answer of the site.
        """
        found = (features.double().cpu() - self.origin) @ self.turned
        return found.float().nan_to_num(0.0, 0.0, 0.0).to(features.device)

    def over_features(self, head: Head) -> Head:
        """Return a head over coordinates as one over features, with the same logits."""
        weight, bias = head[0].double() @ self.turned, head[1].double()
        return weight.float(), (bias - weight @ self.origin).float()


def made_up(inputs: tuple[int, ...], seed: int, number: int) -> Tensor:
    """Return the made-up images of a batch, float32 [AT_ONCE, *inputs], each standardised."""
    image = len(inputs) == 3
    sides = tuple(2 * side for side in inputs[1:]) if image else inputs[1:]
    draws = numpy_stream(seed, "made-up", number)
    drawn = draws.standard_normal((AT_ONCE, inputs[0], *sides))
    if image:
        waves = np.hypot(*np.meshgrid(*map(np.fft.fftfreq, sides), indexing="ij"))
        waves[0, 0] = 1.0  # the mean, which is taken off
        drawn = np.fft.ifft2(np.fft.fft2(drawn) / waves).real
        # A part alone: opposite edges are no neighbours.
        drawn = drawn[..., : inputs[1], : inputs[2]]
    flat = drawn.reshape(AT_ONCE, -1)
    flat = flat - flat.mean(1, keepdims=True)
    flat = flat / np.maximum(flat.std(1, keepdims=True), 1e-12)
    return torch.from_numpy(flat.reshape(AT_ONCE, *inputs)).float()


def _moments(features: FeatureMap, data: SiteData, seed: int) -> tuple[Tensor, Tensor]:
    """Return mean and covariance of the made-up images' features."""
    total = torch.zeros(features.size, dtype=torch.float64)
    square = torch.zeros(features.size, features.size, dtype=torch.float64)
    held = [*features.parameters(), *features.buffers(), total]
    for number in range(IMAGES // AT_ONCE):
        some = made_up(data.inputs, seed, number)
        if len(data.inputs) == 3:
            some = normalise(GREY + CONTRAST * some, data.mean, data.std)
        rows = features.of(some.to(held[0].device)).double().cpu()
        total += rows.sum(0)
        square += rows.T @ rows
    mean = total / IMAGES
    return mean, square / IMAGES - torch.outer(mean, mean)
