"""A user's own network, `model.name=package.module:function` (docs/extend/networks.md).

The function is code on this machine: it is never sent, and every site has its own copy. It may
return an `nn.Sequential`, which is then split at its dropout and its head.
"""

import inspect
import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict
from functools import lru_cache
from typing import Any, get_type_hints

import torch
from pydantic import PydanticUserError
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedapp.core.errors import ConfigError, one_line
from fedapp.core.plugins import load_function
from fedapp.core.settings import CLOSED
from fedapp.learn.networks.base import Features, Network, NetworkSettings

_SIGNATURE = (
    "def function(inputs: tuple[int, ...], num_classes: int, ...settings) -> Network "
    "or nn.Sequential"
)
_PACKED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def ends_in_head(layers: nn.Sequential) -> bool:
    """Whether the last two layers are a dropout and a linear head."""
    return [type(layer) for layer in layers][-2:] == [nn.Dropout, nn.Linear]


class SequentialNetwork(Network):
    """A network made from layers that `ends_in_head`. It answers as the layers themselves do."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        *trunk, dropout, head = layers
        assert isinstance(dropout, nn.Dropout) and isinstance(head, nn.Linear)
        self.layers = nn.Sequential(*trunk)
        self.dropout, self.head, self.features = dropout, head, head.in_features

    def trunk(self, x: Tensor) -> Features:
        """Run all layers except the last two."""
        with self.in_compute_type(x.device):
            return (self.layers(x),)


def own_class(name: str) -> type[NetworkSettings]:
    """Return a class of settings made from the signature of a function.

    Every parameter after the first two becomes a setting with its type and default. Raises
    ConfigError where the function is missing or has another form.
    """
    return _class_of(name, load_function(name))


@lru_cache  # one class for one function, so that equal settings are equal
def _class_of(name: str, function: Callable[..., Any]) -> type[NetworkSettings]:
    try:
        hints = get_type_hints(function)
        _, _, *parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError, NameError) as error:
        raise ConfigError(f"must be `{_SIGNATURE}` ({one_line(error, 200)})") from error
    made = hints.get("return")
    # Requiring the return type also prevents calls of functions that were not written for this.
    if not (isinstance(made, type) and issubclass(made, (Network, nn.Sequential))):
        raise ConfigError(f"its return type must be Network or nn.Sequential: `{_SIGNATURE}`")
    if odd := [p.name for p in parameters if p.name not in hints or p.kind in _PACKED]:
        raise ConfigError(f"parameter {odd[0]!r} is a setting: write its type, as in `rate: float`")
    # `model.weights` is a file of this machine, which no digest of settings has.
    taken = {"name", "weights", *dir(NetworkSettings)}
    if odd := [p.name for p in parameters if p.name in taken or p.name[0] == "_"]:
        raise ConfigError(f"parameter {odd[0]!r}: no setting can have this name; choose another")

    def network(self: Any, inputs: tuple[int, ...], num_classes: int) -> Any:
        return _call_function(name, function, inputs, num_classes, asdict(self))

    def reduced(self: Any) -> tuple[Any, ...]:
        return _rebuild, (name, asdict(self))  # another process makes the class for itself

    members: dict[str, Any] = {
        "name": name,
        "network": network,
        "__reduce__": reduced,
        "__doc__": f"Settings of {name}.",
        "__annotations__": {p.name: hints[p.name] for p in parameters},
        **{p.name: p.default for p in parameters if p.default is not p.empty},
    }
    own = type("OwnNetworkSettings", (NetworkSettings,), members)
    try:
        settings: type = dataclass(frozen=True, config=CLOSED, kw_only=True)(own)
    except (PydanticUserError, ValueError) as error:
        raise ConfigError(
            f"its settings must be of type bool, int, float or str ({one_line(error, 200)})"
        ) from error
    return settings


def _rebuild(name: str, settings: dict[str, Any]) -> NetworkSettings:
    return own_class(name)(**settings)


def _call_function(
    name: str,
    function: Callable[..., Any],
    inputs: tuple[int, ...],
    num_classes: int,
    settings: dict[str, Any],
) -> Any:
    try:
        network = function(inputs, num_classes, **settings)
    except Exception as error:  # a user's own code may raise anything
        raise ConfigError(
            f"model.name = {name!r}: it failed for inputs {list(inputs)} and {num_classes} "
            f"classes ({type(error).__name__}: {one_line(error, 300)}); correct it there"
        ) from error
    if not isinstance(network, nn.Sequential):
        return network
    if not ends_in_head(network):
        raise _violation(name, "the function", "must return a row that ends in Dropout and Linear")
    return SequentialNetwork(network)


def check_contract(name: str, network: object, inputs: tuple[int, ...], num_classes: int) -> None:
    """Check that a network keeps the contract of `Network`, using two artificial inputs.

    The network is not changed. Raises ConfigError naming the member that breaks the contract.
    """
    if not isinstance(network, Network):
        raise _violation(
            name, "the function", f"must return a Network, not {type(network).__name__}"
        )
    head, dropout = getattr(network, "head", None), getattr(network, "dropout", None)
    if not (isinstance(head, nn.Linear) and head.bias is not None):
        raise _violation(name, "head", "must be an nn.Linear with a bias")
    if (head.in_features, head.out_features) != (getattr(network, "features", 0), num_classes):
        raise _violation(name, "head", f"must go from `features` numbers to {num_classes} classes")
    if not (isinstance(dropout, nn.Dropout) and 0 <= dropout.p < 1):
        raise _violation(name, "dropout", "must be an nn.Dropout of a rate in [0, 1)")
    for tensor, value in network.state_dict().items():
        if value.dtype not in (torch.float32, torch.int64):
            raise _violation(name, tensor, f"is {value.dtype}, must be float32 or int64")
    copy = deepcopy(network).train()
    made_up = torch.linspace(-1, 1, 2 * math.prod(inputs)).view(2, *inputs)
    with torch.no_grad():
        features, again = _run(name, "trunk", copy.trunk, made_up), copy.trunk(made_up)
        if not (isinstance(features, tuple) and all(isinstance(f, Tensor) for f in features)):
            raise _violation(name, "trunk", "must return a tuple of tensors")
        if not all(map(torch.equal, features, again)):
            raise _violation(name, "trunk", "gives other answers each time: drop in `embed` only")
        embedding = _run(name, "embed", copy.embed, features)
        if embedding.shape != (2, network.features):
            raise _violation(
                name, "embed", f"must return [n, {network.features}], as `features` says"
            )
        logits = _run(name, "classify", copy.classify, embedding)
        if logits.shape != (2, num_classes) or logits.dtype != torch.float32:
            raise _violation(name, "classify", f"must return float32 [n, {num_classes}]")


def _run(name: str, member: str, piece: Callable[[Any], Any], given: object) -> Any:
    try:
        return piece(given)
    except Exception as error:  # a user's own code may raise anything
        said = f"fails ({type(error).__name__}: {one_line(error, 300)})"
        raise _violation(name, member, said) from error


def _violation(name: str, member: str, rule: str) -> ConfigError:
    return ConfigError(f"model.name = {name!r}: {member}: {rule}; see docs/extend/networks.md")
