"""Pretrained networks without their heads: packaged, of torchvision, of timm, or a user's own."""

from functools import lru_cache
from typing import get_type_hints

import torch
from torch import Tensor, nn

from fedapp.core.errors import ConfigError, name_suggestion, one_line
from fedapp.core.optional_dependencies import Extra, needs
from fedapp.core.plugins import is_function_name, load_function
from fedapp.learn.networks import is_timm_name
from fedapp.learn.networks._weights import PACKAGED, TIMM, load_body, read_weights
from fedapp.learn.params import Params

WITH_AUXILIARY_HEADS = ("googlenet", "inception_v3")
"""Networks with auxiliary heads in the middle, whose files contain these heads, too."""


@lru_cache(maxsize=2)
def read_body(network: str, file: str, sha256: str) -> nn.Module:
    """Return a network without its head, with the weights of a file, in evaluation mode.

    It maps float32 [n, 3, size, size] -> [n, d]. It is cached, so do not change it. Raises
    ConfigError where the file is not of this network, or where the network has no head.
    """
    from torchvision.ops import (
        StochasticDepth,
    )  # the import takes seconds, and most runs do not need it

    with torch.random.fork_rng(devices=()):  # all random weights are overwritten
        body = _built(network)
    names = list(body.state_dict())
    head = _cut_off(body, network)
    tensors = read_weights(file, sha256, names)
    if network in PACKAGED:
        tensors = _in_order(tensors, names, network)
    load_body(body, {n: t for n, t in tensors.items() if not n.startswith(head)}, file)
    for module in body.modules():
        if isinstance(module, (nn.Dropout, StochasticDepth)):
            module.p = 0.0  # the only dropout is the one in front of the new head
    return body.eval().requires_grad_(False).to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def _in_order(tensors: Params, names: list[str], network: str) -> Params:
    """Return the tensors of packaged weights under timm's names, which have the same order."""
    pairs = list(zip(tensors.items(), names, strict=False))
    ends = [(theirs.rpartition(".")[2], ours.rpartition(".")[2]) for (theirs, _), ours in pairs]
    if len(tensors) != len(names) or any(theirs != ours for theirs, ours in ends):
        raise ConfigError(
            f"model.body = {network!r}: this version of timm orders its tensors differently: "
            "pip install 'fedapp[encoder]' with the versions in constraints.txt"
        )
    return {ours: tensor for (_, tensor), ours in pairs}


def _built(network: str) -> nn.Module:
    if network in PACKAGED:
        return _of_timm(f"{TIMM}{PACKAGED[network].network}", "encoder")
    if network.startswith(TIMM):
        return _of_timm(network)
    if is_function_name(network):
        return _own(network)
    from torchvision import models

    names = [n for n in models.list_models(module=models) if n not in WITH_AUXILIARY_HEADS]
    if network not in names:
        raise ConfigError(
            f"model.body = {network!r}: no such network of torchvision; "
            f"{name_suggestion(network, [*PACKAGED, *names])}"
        )
    built: nn.Module = models.get_model(network, weights=None)
    return built


def _of_timm(network: str, extra: Extra = "timm") -> nn.Module:
    timm, name = needs(extra, "timm"), network.removeprefix(TIMM)
    if not (is_timm_name(network) and timm.is_model(name)):
        known = name_suggestion(name.partition(".")[0], timm.list_models())[:200]
        raise ConfigError(f"model.body = {network!r}: no such network of timm; {known}")
    built: nn.Module = timm.create_model(name, pretrained=False)
    return built


def _own(network: str) -> nn.Module:
    try:
        function = load_function(network)
        made = get_type_hints(function).get("return")
    except (ConfigError, TypeError, NameError) as error:
        raise ConfigError(f"model.body = {network!r}: {one_line(error, 300)}") from error
    # Requiring the return type prevents calls of functions that were not written for this.
    if not (isinstance(made, type) and issubclass(made, nn.Module)):
        raise ConfigError(
            f"model.body = {network!r}: must be `def function() -> nn.Module`; correct it"
        )
    try:
        built: nn.Module = function()
    except Exception as error:  # a user's own code may raise anything
        raise ConfigError(
            f"model.body = {network!r}: it failed ({type(error).__name__}: "
            f"{one_line(error, 200)}); correct it there"
        ) from error
    return built


def _cut_off(body: nn.Module, network: str) -> str:
    """Replace a network's head by the identity. Return the prefix of the names of its tensors."""
    own = [(n, m) for n, m in body.named_modules() if list(m.parameters(recurse=False))]
    name, last = own[-1]
    if not isinstance(last, nn.Linear):
        raise ConfigError(
            f"model.body = {network!r}: ends in {name!r}, a {type(last).__name__}, and a head is "
            "a Linear; choose another network"
        )
    parent, _, child = name.rpartition(".")
    setattr(body.get_submodule(parent), child, nn.Identity())
    return f"{name}."


@torch.no_grad()
def width(body: nn.Module, network: str, size: int) -> int:
    """Return d, the width of the body's output. Raises ConfigError where it rejects such images."""
    try:
        found = body(torch.zeros(2, 3, size, size))
    except (RuntimeError, ValueError, AssertionError) as error:
        raise ConfigError(
            f"model.size = {size}: {network} takes no images of {size} pixels a side "
            f"({one_line(error, 100)}); set model.size to 0, the size that its weights are of"
        ) from error
    if not (isinstance(found, Tensor) and found.ndim == 2):
        raise ConfigError(f"model.body = {network!r}: gives no row of numbers; choose another")
    return found.shape[1]


def trained_modules(body: nn.Module, trained: str) -> list[str]:
    """Return the names of the modules to train; none of them is inside another.

    trained: "head": none; "all": the body; "last": its last block and all that follows; or names,
        separated by commas.
    Raises ConfigError on anything else.
    """
    if trained == "head":
        return []
    if trained == "all":
        return [""]
    if trained == "last":
        return _cover(body, "", _behind(body))
    chosen = [name.strip() for name in trained.split(",")]
    known = [n for n, part in body.named_modules() if n and list(part.parameters())]
    for name in chosen:
        if name not in known:
            raise ConfigError(
                f"model.trained = {trained!r}: {name!r} is no part of the network; write head, "
                f"last, all, or names with commas between; {name_suggestion(name, known)}"
            )
    return [n for n in chosen if not any(n.startswith(f"{other}.") for other in chosen)]


def _behind(body: nn.Module) -> frozenset[str]:
    """Return the names of the parameters of the last block and of all that follows it.

    A block is a module of several layers whose type occurs at least twice, that is not a plain
    container, and that is in no other block. A network without blocks has its last layer instead.
    """
    rows = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
    found = {
        name: type(module)
        for name, module in body.named_modules()
        if name and not isinstance(module, rows) and len(list(module.named_parameters())) > 2
    }
    kinds = list(found.values())
    blocks = [name for name, kind in found.items() if kinds.count(kind) > 1]
    outer = [n for n in blocks if not any(n.startswith(f"{other}.") for other in blocks)]
    names = [name for name, _ in body.named_parameters()]
    last = outer[-1] if outer else names[-1].rpartition(".")[0]
    first = next(place for place, name in enumerate(names) if name.startswith(f"{last}."))
    return frozenset(names[first:])


def _cover(module: nn.Module, name: str, names: frozenset[str]) -> list[str]:
    """Return the largest modules whose parameters all are among these names."""
    prefix = f"{name}." if name else ""
    own = {f"{prefix}{n}" for n, _ in module.named_parameters()}
    if not own & names:
        return []
    if own <= names:
        return [name]
    inside = (_cover(child, f"{prefix}{n}", names) for n, child in module.named_children())
    return [found for part in inside for found in part]
