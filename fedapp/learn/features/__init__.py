"""Fixed features by name: `fedapp/learn/features/<name>.py` holds one and offers `FEATURES`."""

from fedapp.core.errors import ConfigError, name_suggestion
from fedapp.core.plugins import class_in_module, module_names
from fedapp.learn.features.base import FeatureMap, LearnedFeatures
from fedapp.learn.networks.base import Network

__all__ = [
    "DEFAULT_FEATURES",
    "FeatureMap",
    "LearnedFeatures",
    "build_features",
    "feature_class",
    "feature_names",
]

DEFAULT_FEATURES = "auto"
"""The feature map where no setting names one."""


def feature_names() -> list[str]:
    """Return the names of all feature maps, sorted: this package's modules except helpers."""
    return module_names(__path__)


def feature_class(name: str) -> type[FeatureMap]:
    """Return the class of a feature map. Raises ConfigError where there is no such map."""
    if name not in feature_names():
        raise ConfigError(f"no such features; {name_suggestion(name, feature_names())}")
    offered: type[FeatureMap] = class_in_module(__name__, name, "FEATURES", FeatureMap)
    return offered


def build_features(
    name: str, inputs: tuple[int, ...], seed: int = 0, network: Network | None = None
) -> FeatureMap:
    """Build a feature map in evaluation mode, without gradients.

    inputs: the shape of one input; (channels, height, width) for an image.
    seed: of random draws, if the map has any. It must be the same at the server and at all sites.
    network: a network with its weights, which the map `network` needs.
    Raises ConfigError on an unknown name, and where the map cannot take such inputs.
    """
    found = feature_class(name)
    if rule := found.misfit(inputs):
        raise ConfigError(f"inputs of shape {list(inputs)}: {rule}")
    return found.build(inputs, seed, network).eval().requires_grad_(False)
