"""Which fixed features a closed form is of, by name."""

from copy import deepcopy
from typing import Annotated, Final

from pydantic import AfterValidator

from fedapp.ground.errors import ConfigError
from fedapp.learn.features import FeatureMap, LearnedFeatures, build_features, feature_class
from fedapp.learn.networks.base import Network, NetworkSettings

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


def unfit_features(name: str, model: NetworkSettings) -> str:
    """Return why these features cannot be had of a network, and the remedy; empty: they can."""
    weights = getattr(model, "weights_sha256", "")
    if name != FROZEN or ":" in model.name or weights:
        return ""
    return "`network` features need a trained network: set model.weights, or take hog"


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
