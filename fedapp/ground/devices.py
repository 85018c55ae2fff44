"""What torch computes with: threads, device, number format."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Fix torch's CPU threads: convolutions give other bits with another number."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def pick_device(setting: str) -> torch.device:
    """Return the device that `runtime.device` asks for."""
    if setting == "auto":
        setting = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(setting)


def pick_dtype(setting: str, device: torch.device) -> torch.dtype:
    """Return the number format of convolutions that `runtime.precision` asks for."""
    if setting == "auto":
        setting = "bfloat16" if device.type == "cuda" else "float32"
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[setting]
