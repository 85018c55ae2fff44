"""Fixed features by name: `fedapp/learn/features/<name>.py` holds one and offers `FEATURES`."""

import pkgutil
from importlib import import_module

from fedapp.ground.errors import ConfigError, nearest
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
"""Where nothing says otherwise."""
_NOT_FEATURES = ("base",)


def feature_names() -> list[str]:
    """Return the name of every map of features, sorted: this package's modules but helping ones."""
    files = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in files if name not in _NOT_FEATURES and name[0] != "_")


def feature_class(name: str) -> type[FeatureMap]:
    """Return the class of a map of features. Raises ConfigError where there is none."""
    if name not in feature_names():
        raise ConfigError(f"no such features; {nearest(name, feature_names())}")
    offered = getattr(import_module(f"{__name__}.{name}"), "FEATURES", None)
    if not (isinstance(offered, type) and issubclass(offered, FeatureMap) and offered.name == name):
        raise ConfigError(
            f"fedapp/learn/features/{name}.py must offer FEATURES, a class made from FeatureMap "
            f'whose `name` is "{name}"'
        )
    return offered


def build_features(
    name: str, inputs: tuple[int, ...], seed: int = 0, network: Network | None = None
) -> FeatureMap:
    """Build a map of features, in eval mode, without gradients.

    inputs: shape of one input, (channels, height, width) of an image. seed: of draws, where the map
    needs some; the same at the server and at all sites. network: a network that has its weights;
    `network` needs one. Raises ConfigError on an unknown name, and where the map cannot take such
    inputs.
    """
    found = feature_class(name)
    if rule := found.misfit(inputs):
        raise ConfigError(f"inputs of shape {list(inputs)}: {rule}")
    return found.build(inputs, seed, network).eval().requires_grad_(False)
