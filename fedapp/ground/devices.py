"""What torch computes with: threads, device, number format."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedapp.ground.errors import ConfigError


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Fix torch's CPU threads: convolutions give other bits with another number."""
    before = torch.get_num_threads()
    if before == threads:  # to set it costs as much as a small layer, even where nothing changes
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def pick_device(setting: str) -> torch.device:
    """Return the device that `runtime.device` asks for; ConfigError where this machine has none."""
    here = torch.cuda.is_available()
    if setting == "cuda" and not here:
        raise ConfigError(
            "runtime.device = 'cuda': PyTorch finds no GPU on this machine; install its driver and "
            "a CUDA build of PyTorch, or set runtime.device=auto"
        )
    return torch.device("cuda" if here and setting != "cpu" else "cpu")


def pick_dtype(setting: str, device: torch.device) -> torch.dtype:
    """Return the number format of convolutions that `runtime.precision` asks for."""
    if setting == "auto":
        setting = "bfloat16" if device.type == "cuda" else "float32"
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[setting]
