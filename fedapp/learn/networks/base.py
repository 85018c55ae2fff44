"""The contract of every network, and the base of its settings (docs/extend/networks.md)."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

Features = tuple[Tensor, ...]
"""What the trunk hands to the tail: one or more tensors, each [n, ...]."""
Draw = Callable[[Tensor, float], Tensor]
"""A dropout sample: (values, rate p in [0, 1)) -> the values, each set to 0 or times 1 / (1 - p).
"""

MAX_CHANNELS = 16
"""Channels of an image, at most."""
MAX_VALUES = 2**20
"""Numbers in one input, at most; an image of 3 x 512 x 512 has 786,432."""


class Network(nn.Module, ABC):
    """A classifier in three pieces, `classify(embed(trunk(x)))`, split at its dropout and its head.

    Everything in front of the first dropout gives the same result in every pass of MC dropout. It
    is in `trunk`, which runs once; `embed` and `classify` run in every pass.

    The constructor of a subclass sets `head`, `dropout` and `features` (`end_in` does). A subclass
    has `trunk` and, if there are layers between its dropout and its head, `embed`. All tensors of
    its state dict are float32 or int64.
    """

    head: nn.Linear
    """From `features` numbers to one logit for each class. Its tensors are the classifier head."""
    dropout: nn.Dropout
    """The network's dropout with its rate `p`. If there are several, the one in front of the head.
    """
    features: int
    """d, the number of values that `embed` returns for an input."""
    inputs: tuple[int, ...] = ()
    """The shape of one input that the network was built for (`networks.build_model`)."""
    compute: torch.dtype = torch.float32
    """The type in which layers under `in_compute_type` run. With bfloat16, parameters, statistics
    of batch norms and logits are still float32.
    """
    finds: bool = False
    """Whether the outputs are findings, each present or absent, rather than classes that exclude
    each other (`networks.build_model`).
    """

    _asked: bool | None = None
    """The mode that was last passed to `train`."""

    def end_in(self, features: int, num_classes: int, dropout: float) -> None:
        """Set the dropout and the linear head at the end of a network, after all other layers.

        features: d. dropout: p, in [0, 1).
        """
        self.dropout = nn.Dropout(dropout)
        self.features = features
        self.head = nn.Linear(features, num_classes)

    def train(self, mode: bool = True) -> Self:
        """Set the mode as torch does, but do nothing if all modules have it already.

        This is the common case, and torch sets the attribute of each module by a slow path.
        """
        if self._asked != mode or any(module.training != mode for module in self.modules()):
            super().train(mode)
            self._asked = mode
        return self

    @abstractmethod
    def trunk(self, x: Tensor) -> Features:
        """Run all layers in front of the first dropout: float [n, *inputs] -> features."""

    def embed(self, features: Features, dropout: Draw | None = None) -> Tensor:
        """Run the layers from the first dropout to the head: features -> [n, d].

        The default is the dropout alone, for networks without layers between it and the head.
        dropout: replaces the network's own dropout, which acts in training mode only.
        """
        return drop(self.dropout, features[0], dropout)

    def classify(self, embedding: Tensor) -> Tensor:
        """Run the head: [n, d] -> logits float32 [n, num_classes]."""
        with self.in_compute_type(embedding.device):
            out: Tensor = self.head(embedding)
        return out.float()

    def tail(self, features: Features, dropout: Draw | None = None) -> Tensor:
        """Run the layers from the first dropout on, with a new dropout sample in every call.

        dropout: as for `embed`.
        """
        return self.classify(self.embed(features, dropout))

    def answer(self, logits: Tensor) -> Tensor:
        """Return logits [..., C] as probabilities: softmax for classes, sigmoid for findings."""
        return torch.sigmoid(logits) if self.finds else torch.softmax(logits, dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        """float [n, *inputs] -> logits float32 [n, num_classes]."""
        return self.tail(self.trunk(x))

    def in_compute_type(self, device: torch.device) -> AbstractContextManager[object]:
        """Return the context in which layers run in the type `compute`."""
        half = self.compute == torch.bfloat16
        if half == torch.is_autocast_enabled(
            device.type
        ):  # entering a context takes time at a tiny site
            return nullcontext()
        return torch.autocast(device.type, torch.bfloat16, enabled=half)


def drop(module: nn.Dropout, x: Tensor, dropout: Draw | None) -> Tensor:
    """Apply dropout to x at the module's rate: by `dropout`, or by the module if that is None."""
    out: Tensor = module(x) if dropout is None else dropout(x, module.p)
    return out


def drop_channels(module: nn.Dropout2d, x: Tensor, dropout: Draw | None) -> Tensor:
    """Drop whole channels of x, [n, c, h, w], at the module's rate; otherwise like `drop`."""
    if dropout is None:
        out: Tensor = module(x)
        return out
    return x * dropout(x.new_ones((*x.shape[:2], 1, 1)), module.p)


class NetworkSettings(ABC):
    """A network's name and settings: the base of frozen dataclasses.

    A subclass in this package is `fedapp/learn/networks/<name>.py`, which offers it as `NETWORK`.
    """

    name: ClassVar[str]
    sides: ClassVar[tuple[int, int] | None] = None
    """Least and greatest height and width of images, in pixels; None: inputs of any shape."""
    raw: ClassVar[bool] = False
    """Whether the network takes pixels / 255, or numbers unchanged, and normalises them itself."""
    simulated: ClassVar[bool] = False
    """Whether it is for simulations alone, whose sites hold what `stand_in` returns."""

    def stand_in(self, images: Tensor, flip: bool) -> Tensor:
        """Return what simulated sites hold in place of all images, float32 [N, 1].

        images: uint8 [N, C, H, W]. flip: whether a mirrored image has the same class.
        """
        raise NotImplementedError

    @abstractmethod
    def network(self, inputs: tuple[int, ...], num_classes: int) -> Network:
        """Build the network, with weights drawn from torch's global generator.

        inputs: the shape of one input without a `misfit`; (channels, height, width) for an image.
        """

    def started(self, network: Network) -> Network:
        """Return a new network with what w_0 takes from a file on this machine; by default nothing.

        Raises ConfigError where the file is not as the settings say.
        """
        return network

    @property
    def files(self) -> tuple[str, ...]:
        """Files on this machine that the network needs, its weights first; usually none."""
        return ()

    def misfit(self, inputs: tuple[int, ...]) -> str:
        """Return why the network cannot take inputs of this shape, and the remedy; or nothing."""
        if math.prod(inputs) > MAX_VALUES:
            return f"one input has at most {MAX_VALUES:,} numbers; make it smaller"
        if self.sides is None:
            return ""
        low, high = self.sides
        if len(inputs) != 3 or inputs[0] > MAX_CHANNELS:
            return f"{self.name} takes images of 1 to {MAX_CHANNELS} channels; use model.name=mlp"
        if not all(low <= side <= high for side in inputs[1:]):
            return (
                f"{self.name} takes images of {low} to {high} pixels a side; change "
                "data.image_size or model.name"
            )
        return ""
