"""Networks by name: `fedapp/learn/networks/<name>.py` holds one and offers `NETWORK`.

A user's own network is named `package.module:function` (docs/extend/networks.md).
"""

import re
from collections.abc import Mapping

import torch

from fedapp.core.errors import ConfigError
from fedapp.core.plugins import class_in_module, module_names, name_advice
from fedapp.core.rng import seeded
from fedapp.learn.networks._own import check_contract, own_class
from fedapp.learn.networks.base import Network, NetworkSettings
from fedapp.learn.params import Params

__all__ = [
    "DEFAULT_NETWORK",
    "Network",
    "NetworkSettings",
    "build_model",
    "initial_params",
    "is_timm_name",
    "network_class",
    "network_names",
    "network_settings",
]

DEFAULT_NETWORK = "resnet9"
"""The default of `model.name`: the paper's network."""
_NOT_NETWORKS = ("base", "parts")


def is_timm_name(network: str) -> bool:
    """Whether a text names a network of timm by its plain name, without a path, hub or module."""
    return re.fullmatch(r"timm:\w+(\.\w+)?", network, re.ASCII) is not None


def network_names() -> list[str]:
    """Return every network's name, sorted: the modules of this package except helper modules.

    Users' own networks are not among them.
    """
    return module_names(__path__, _NOT_NETWORKS)


def network_class(name: str) -> type[NetworkSettings]:
    """Return the class of a network's settings, for a name or for `package.module:function`.

    Raises ConfigError where there is no such network, or where it breaks the contract.
    """
    if ":" in name:
        return own_class(name)
    if name not in network_names():
        raise ConfigError(f"no such network; {name_advice(name, network_names())}")
    offered: type[NetworkSettings] = class_in_module(__name__, name, "NETWORK", NetworkSettings)
    return offered


def network_settings(name: str, fields: Mapping[str, object]) -> NetworkSettings:
    """Return a network's settings; fields that are not given have their defaults.

    Raises ConfigError on an unknown name, and pydantic's ValidationError on unknown, wrongly typed,
    out-of-range or contradictory fields (`fedapp.experiment.config` turns it into a ConfigError).
    """
    return network_class(name)(**fields)


def build_model(
    settings: NetworkSettings,
    inputs: tuple[int, ...],
    num_classes: int,
    compute: torch.dtype = torch.float32,
    finds: bool = False,
) -> Network:
    """Build the network; its weights are random.

    inputs: the shape of one input, (channels, height, width) of an image or (dimensions,) of a
        vector.
    compute: float32, or bfloat16 for the layers that the network runs in it.
    finds: whether the `num_classes` outputs are findings.
    Raises ConfigError where the network cannot take such inputs.
    """
    if rule := settings.misfit(inputs):
        raise ConfigError(f"inputs of shape {list(inputs)}: {rule}")
    network = settings.network(inputs, num_classes)
    if ":" in settings.name:
        check_contract(settings.name, network, inputs, num_classes)
    network.compute, network.inputs, network.finds = compute, inputs, finds
    if len(inputs) == 3:  # only convolutions have kernels with this layout
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def initial_params(
    settings: NetworkSettings, inputs: tuple[int, ...], num_classes: int, seed: int
) -> Params:
    """Return w_0. It is the same on every machine with the same version of torch.

    Raises ConfigError as `build_model` does, and where w_0 needs a file that is missing.
    """
    with seeded(torch.device("cpu"), seed, "initial model"):
        model = settings.started(build_model(settings, inputs, num_classes))
        return {name: tensor.clone() for name, tensor in model.state_dict().items()}
