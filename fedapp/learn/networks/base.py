"""What every network keeps to, and what its settings can do (docs/extend/networks.md)."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

Features = tuple[Tensor, ...]
"""What the trunk hands to the tail: one tensor or more, each [n, ...]."""
Draw = Callable[[Tensor, float], Tensor]
"""A dropout sample: values and a rate p in [0, 1) -> the values, each 0 or times 1 / (1 - p)."""

MAX_CHANNELS = 16
"""Colour channels of an image."""
MAX_VALUES = 2**20
"""Numbers in one input; an image of 3 x 512 x 512 has 786,432."""


class Network(nn.Module, ABC):
    """A classifier in three pieces: `classify(embed(trunk(x)))`, cut at its dropout and its head.

    Everything in front of the first dropout gives the same answer on every pass of MC dropout:
    `trunk` holds it and is run once; `embed` and `classify` are what each pass repeats.

    A subclass sets, in its constructor, `head`, `dropout` and `features` (`end_in` does), and has
    `trunk`, and `embed` where layers stand between its dropout and its head. All tensors of its
    state dict are float32 or int64.
    """

    head: nn.Linear
    """From `features` numbers to one logit a class; its tensors are the classifier head."""
    dropout: nn.Dropout
    """The network's dropout; `p` is its rate. Where there are others, the one before the head."""
    features: int
    """d, numbers that `embed` gives for an input."""
    inputs: tuple[int, ...] = ()
    """Shape of one input that it was built for (`networks.build_model`)."""
    compute: torch.dtype = torch.float32
    """bfloat16: what runs under `in_compute_type` runs in it; parameters, statistics of batch norms
    and logits are float32 all the same."""
    finds: bool = False
    """Whether its logits are of findings, each there or not, and not of classes that exclude each
    other (`networks.build_model`)."""

    _asked: bool | None = None
    """The mode that `train` was last asked for."""

    def end_in(self, features: int, num_classes: int, dropout: float) -> None:
        """Set the dropout and the linear head that a network ends in, once all else is there.

        features: d. dropout: p, in [0, 1).
        """
        self.dropout = nn.Dropout(dropout)
        self.features = features
        self.head = nn.Linear(features, num_classes)

    def train(self, mode: bool = True) -> Self:
        """Set the mode, as torch does; where every module has it already, nothing is set.

        Most calls find it so, and torch takes each module's attribute the long way.
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

        Here the dropout alone, for networks that have no layer behind it but the head. dropout:
        takes the place of the network's own, which acts in training mode only.
        """
        return drop(self.dropout, features[0], dropout)

    def classify(self, embedding: Tensor) -> Tensor:
        """Run the head: [n, d] -> logits float32 [n, num_classes]."""
        with self.in_compute_type(embedding.device):
            out: Tensor = self.head(embedding)
        return out.float()

    def tail(self, features: Features, dropout: Draw | None = None) -> Tensor:
        """Run the layers from the first dropout on; a fresh dropout sample on every call.

        dropout: as of `embed`.
        """
        return self.classify(self.embed(features, dropout))

    def answer(self, logits: Tensor) -> Tensor:
        """Return logits [..., C] as probabilities: of classes they sum to 1, of findings not."""
        return torch.sigmoid(logits) if self.finds else torch.softmax(logits, dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        """float [n, *inputs] -> logits float32 [n, num_classes]."""
        return self.tail(self.trunk(x))

    def in_compute_type(self, device: torch.device) -> AbstractContextManager[object]:
        """Return the context in which layers run in `compute`."""
        half = self.compute == torch.bfloat16
        if half == torch.is_autocast_enabled(device.type):  # a context costs a tiny site's time
            return nullcontext()
        return torch.autocast(device.type, torch.bfloat16, enabled=half)


def drop(module: nn.Dropout, x: Tensor, dropout: Draw | None) -> Tensor:
    """Drop values of x at the module's rate: by `dropout`, or as the module itself does."""
    out: Tensor = module(x) if dropout is None else dropout(x, module.p)
    return out


def drop_channels(module: nn.Dropout2d, x: Tensor, dropout: Draw | None) -> Tensor:
    """Drop whole channels of x [n, c, h, w] at the module's rate, as `drop` does values."""
    if dropout is None:
        out: Tensor = module(x)
        return out
    return x * dropout(x.new_ones((*x.shape[:2], 1, 1)), module.p)


class NetworkSettings(ABC):
    """A network by name and what can be set of it: the base of frozen dataclasses.

    A subclass of the package is `fedapp/learn/networks/<name>.py`, which offers it as `NETWORK`.
    """

    name: ClassVar[str]
    sides: ClassVar[tuple[int, int] | None] = None
    """Least and greatest height and width of images, pixels; None: inputs of any shape."""
    raw: ClassVar[bool] = False
    """Whether it is given pixels / 255, or numbers as they are, and scales them by itself."""

    @abstractmethod
    def network(self, inputs: tuple[int, ...], num_classes: int) -> Network:
        """Build the network; its weights are drawn from torch's global generator.

        inputs: shape of one input without a `misfit`, (channels, height, width) of an image.
        """

    def started(self, network: Network) -> Network:
        """Return a network built anew, with what w_0 takes from a file of this machine; here none.

        Raises ConfigError where the file is not what the settings say.
        """
        return network

    @property
    def files(self) -> tuple[str, ...]:
        """Files of this machine that it cannot be built without, its weights first; most: none."""
        return ()

    def misfit(self, inputs: tuple[int, ...]) -> str:
        """Return why it cannot take inputs of this shape, and the remedy; empty: it can."""
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
