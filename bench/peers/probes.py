"""Marks between a contender's rounds: time, page faults, images seen; the first round's model."""

import resource
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.peers.problem import save_model

Mark = Callable[[Callable[[], Mapping[str, Tensor]]], None]
"""Called before the first round and after each one; its argument returns the common model."""


class EnoughError(Exception):
    """All rounds are run."""


class Marks:
    """The marks of one run.

    rounds: the last mark after as many raises EnoughError. Of the first round, images
    are counted and the model is written to `model`. classes: of the head, whose inputs are counted.
    """

    def __init__(self, rounds: int, classes: int, model: Path) -> None:
        self.seconds: list[float] = []
        """CPU time of this process in each round, all threads."""
        self.faults: list[int] = []
        """Pages that the system gave to this process in each round."""
        self.images = {"trained": 0, "evaluated": 0}
        """Images that went through the network in the first round."""
        self._rounds, self._classes, self._path = rounds, classes, model
        self._began: tuple[float, int] | None = None
        self._counting: Any = None

    def __call__(self, model: Callable[[], Mapping[str, Tensor]]) -> None:
        """End a round; the time that a mark takes itself is in none."""
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
