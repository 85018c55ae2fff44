"""Models kept on a GPU by their content: many sites of a round load the same ones."""

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from fedapp.ground.recent import Recent
from fedapp.learn.params import Params

CARDS_SHARE = 32
"""One part in so many of a card's memory is for models; several processes may share a card."""


class OnDevice:
    """The models loaded last, up to `budget` bytes of a device's memory.

    Nobody may change a tensor that comes from here in place. For one thread.
    """

    def __init__(self, device: torch.device, budget: int) -> None:
        self._device, self._models = device, Recent[Params](budget)

    @property
    def used(self) -> int:
        """Bytes of tensors that are kept now, at most `budget`."""
        return self._models.used

    def get(self, digest: str, read: Callable[[], Params]) -> Params:
        """Return the model of this digest on the device; where it is not there, read and copy it.

        read: returns its tensors on the CPU, checked.
        """
        if (known := self._models.get(digest)) is not None:
            return known
        params = {name: sent(tensor, self._device) for name, tensor in read().items()}
        self._models.put(digest, params, sum(tensor.nbytes for tensor in params.values()))
        return params


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a CPU tensor's copy on a device; nobody waits until a GPU has it.

    A GPU reads memory that is not pinned only while the processor waits. PyTorch keeps the pinned
    memory until the copy is done.
    """
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


@lru_cache(maxsize=1)
def models_on(device: torch.device) -> OnDevice:
    """Return this process's models on a GPU."""
    return OnDevice(device, budget_of(device))


def budget_of(device: torch.device) -> int:
    """Return the bytes of a GPU's memory that a process keeps models in."""
    return int(torch.cuda.get_device_properties(device).total_memory) // CARDS_SHARE
