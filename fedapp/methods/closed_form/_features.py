"""Fixed features of a closed form, by name, and coordinates in which noise does little harm.

Noise is equally strong in every direction, while features vary much in a few directions and hardly
in most, which the noise would hide. So where single images are protected, features are first
rotated and scaled until those of synthetic images vary nearly equally in all directions. The
synthetic images are random fields whose waves are weaker the shorter they are, as in natural images
(Field 1987); for inputs that are not images, independent normal numbers. They contain nobody's
data, so they cost no privacy, and every site draws the same. A protected site uses these
coordinates for everything that it does with its images.
"""

from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated, Final, Self

import numpy as np
import torch
from pydantic import AfterValidator
from torch import Tensor

from fedapp.core.errors import ConfigError, Incompatibility
from fedapp.core.linear_algebra import eigh
from fedapp.core.rng import numpy_stream
from fedapp.core.settings import OWN
from fedapp.data.inputs import normalise
from fedapp.data.sites import SiteData
from fedapp.learn.features import FeatureMap, LearnedFeatures, build_features, feature_class
from fedapp.learn.features.auto import Auto
from fedapp.learn.linear_head import Head
from fedapp.learn.networks.base import Network, NetworkSettings
from fedapp.methods.incompatibilities import Conditions

FROZEN = "network"
"""The name of the features of a frozen network."""
NO_FEATURES: Final = "none"
"""In place of a name: there is no closed form."""
SAME_ALONE: Final = "the same closed form"
"""What the model is that a site makes alone (`Method.lone_model`)."""


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


def closed_incompatibilities(
    name: str, steps: int, conditions: Conditions
) -> list[Incompatibility]:
    """Return for what these features cannot be computed, and whether gradients need masks.

    From the gradients of a single site its server computes the features of each of some dozens of
    labelled images (tests/security/test_one_image_of_sums.py), so sites send those of images of
    their own in masked sums alone. steps: at most so many of a regression follow.
    """
    if name == NO_FEATURES:
        return []
    found, network = [], conditions.model
    if steps and conditions.data.name == OWN and not conditions.privacy.masked:
        rule, remedy = "a site's gradients tell its single images", "set 0, or privacy.sums=masked"
        found.append(Incompatibility("method.regression_steps", rule, remedy))
    name = features_suited_to(network, name) if network else name
    if conditions.inputs and (rule := feature_class(name).misfit(conditions.inputs)):
        found.append(Incompatibility(conditions.size, rule))
    if name != FROZEN and network is not None and network.simulated:
        rule = f"{name} features are of images; of model.name={network.name}, take network"
        found.append(Incompatibility("method.name", rule))
    if name == FROZEN and network is not None:
        if ":" not in network.name and not getattr(network, "weights_sha256", ""):
            rule = (
                "`network` features need a trained network: set model.body=lite0 (ImageNet's, "
                "from a package) or model.weights, or take hog"
            )
            found.append(Incompatibility("model.name", rule))
    return found


def features_suited_to(network: NetworkSettings, name: str) -> str:
    """Return `network` in place of `auto` where the network has weights of a file or a package."""
    pretrained = bool(getattr(network, "weights_sha256", ""))
    return FROZEN if name == Auto.name and pretrained else name


def learned_features_reason(name: str) -> str:
    """Return why features cannot be used with protected images; empty: they can."""
    if not issubclass(feature_class(name), LearnedFeatures):
        return ""
    return f"{name} features are learned from images: take hog"


def features_for(name: str, network: Network) -> FeatureMap:
    """Return the features of this name for a network's inputs, on the network's device.

    Features of a frozen network are those of a copy, since the network itself continues to learn.
    """
    copied = deepcopy(network) if name == FROZEN else None
    return build_features(name, network.inputs, network=copied).to(network.head.weight.device)


SYNTHETIC_IMAGES, SYNTHETIC_BATCH = 2000, 100
"""Number of synthetic images, and how many are made at a time."""
SYNTHETIC_MEAN, SYNTHETIC_STD = 0.5, 0.25
"""Mean and standard deviation of their pixels, on a scale of 0 to 1."""
VARIANCE_FLOOR = 0.1
"""Added to the variance of every direction before equalising, in units of the mean variance."""
RMS_LENGTH = 0.5
"""Root mean square of a synthetic image's distance from their mean; then few real images reach
1."""

_LAST_COORDINATES: dict[object, "Coordinates"] = {}
"""The coordinates that this process made last: all its sites ask for the same."""


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Coordinates c = turned (f - origin) of features f.

    origin: [d]. turned: [d, d], symmetric. Both are float64, on the CPU.
    """

    origin: Tensor
    turned: Tensor

    @classmethod
    def of(cls, mean: Tensor, covariance: Tensor) -> Self:
        """Return the coordinates for synthetic images with this mean [d] and covariance [d, d]."""
        values, vectors = eigh(covariance)
        values = values.clamp_min(0)
        # Where all are alike, there is nothing to be evened.
        stretched = 1 / (values + VARIANCE_FLOOR * values.mean().clamp_min(1e-12)).sqrt()
        length = (values * stretched.square()).sum().clamp_min(1e-12).sqrt()
        return cls(mean, (vectors * stretched * (RMS_LENGTH / length)) @ vectors.T)

    @staticmethod
    def made(features: FeatureMap, data: SiteData, seed: int, known: str) -> "Coordinates":
        """Return the coordinates for a feature map and inputs like those of a site.

        known: identifies everything that the map depends on; it is the key of the cache.
        """
        key = known, data.inputs, data.mean, data.std, seed
        if key not in _LAST_COORDINATES:
            _LAST_COORDINATES.clear()
            _LAST_COORDINATES[key] = Coordinates.of(*_moments(features, data, seed))
        return _LAST_COORDINATES[key]

    def seen(self, features: Tensor) -> Tensor:
        """Return the coordinates of features [n, d], float32 on the same device.

        NaN and infinity become 0, so that one image cannot spoil all answers of the site.
        """
        found = (features.double().cpu() - self.origin) @ self.turned
        return found.float().nan_to_num(0.0, 0.0, 0.0).to(features.device)

    def over_features(self, head: Head) -> Head:
        """Return a head over coordinates as a head over features with the same logits."""
        weight, bias = head[0].double() @ self.turned, head[1].double()
        return weight.float(), (bias - weight @ self.origin).float()


def synthetic_images(inputs: tuple[int, ...], seed: int, number: int) -> Tensor:
    """Return one batch, float32 [SYNTHETIC_BATCH, *inputs], each image standardised."""
    image = len(inputs) == 3
    sides = tuple(2 * side for side in inputs[1:]) if image else inputs[1:]
    draws = numpy_stream(seed, "made-up", number)
    drawn = draws.standard_normal((SYNTHETIC_BATCH, inputs[0], *sides))
    if image:
        waves = np.hypot(*np.meshgrid(*map(np.fft.fftfreq, sides), indexing="ij"))
        waves[0, 0] = 1.0  # the mean, which is taken off
        drawn = np.fft.ifft2(np.fft.fft2(drawn) / waves).real
        # A part alone: opposite edges are no neighbours.
        drawn = drawn[..., : inputs[1], : inputs[2]]
    flat = drawn.reshape(SYNTHETIC_BATCH, -1)
    flat = flat - flat.mean(1, keepdims=True)
    flat = flat / np.maximum(flat.std(1, keepdims=True), 1e-12)
    return torch.from_numpy(flat.reshape(SYNTHETIC_BATCH, *inputs)).float()


def _moments(features: FeatureMap, data: SiteData, seed: int) -> tuple[Tensor, Tensor]:
    """Return mean and covariance of the synthetic images' features."""
    total = torch.zeros(features.size, dtype=torch.float64)
    square = torch.zeros(features.size, features.size, dtype=torch.float64)
    held = [*features.parameters(), *features.buffers(), total]
    for number in range(SYNTHETIC_IMAGES // SYNTHETIC_BATCH):
        some = synthetic_images(data.inputs, seed, number)
        if len(data.inputs) == 3:
            some = normalise(SYNTHETIC_MEAN + SYNTHETIC_STD * some, data.mean, data.std)
        rows = features.of(some.to(held[0].device)).double().cpu()
        total += rows.sum(0)
        square += rows.T @ rows
    mean = total / SYNTHETIC_IMAGES
    return mean, square / SYNTHETIC_IMAGES - torch.outer(mean, mean)
