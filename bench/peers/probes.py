"""Marks between the rounds of a contender: time, page faults, images seen, the first model."""

import resource
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.peers.problem import save_model

Mark = Callable[[Callable[[], Mapping[str, Tensor]]], None]
"""A function called before the first round and after each; its argument returns the common
model."""


class EnoughError(Exception):
    """Raised when all rounds were run."""


class Marks:
    """The marks of one run.

    In the first round, the images that pass the head are counted, and the model after it is
    written.

    Args:
        rounds: number of rounds; the mark after the last one raises EnoughError.
        classes: of the data set, by which the head is found.
        model: file for the model after the first round.
    """

    def __init__(self, rounds: int, classes: int, model: Path) -> None:
        self.seconds: list[float] = []
        """CPU time of this process in each round, all threads."""
        self.faults: list[int] = []
        """Minor page faults of this process in each round: pages of memory that it was given."""
        self.images = {"trained": 0, "evaluated": 0}
        """Images that passed through the network in the first round."""
        self._rounds, self._classes, self._path = rounds, classes, model
        self._began: tuple[float, int] | None = None
        self._counting: Any = None

    def __call__(self, model: Callable[[], Mapping[str, Tensor]]) -> None:
        """End a round. The time that the mark itself takes does not count."""
        now, faults = _used()
        if self._began is None:
            self._counting = nn.modules.module.register_module_forward_pre_hook(self._count)
        else:
            self.seconds.append(now - self._began[0])
            self.faults.append(faults - self._began[1])
        if len(self.seconds) == 1:
            self._counting.remove()
            save_model(model(), self._path)
        if len(self.seconds) == self._rounds:
            raise EnoughError
        self._began = _used()

    def _count(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        weight = getattr(module, "weight", None)
        if type(module).__name__.endswith("Linear") and weight is not None:
            if weight.shape[0] == self._classes:
                kind = "trained" if torch.is_grad_enabled() else "evaluated"
                self.images[kind] += len(inputs[0])


def _used() -> tuple[float, int]:
    return time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
