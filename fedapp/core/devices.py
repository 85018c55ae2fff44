"""What torch computes with: threads, device, number format, algorithms."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fedapp.core.errors import ConfigError

_memory: Any = torch.utils.deterministic  # its one attribute is made when it is imported


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


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Have a GPU use algorithms that give equal bits every time, where wanted.

    Work for which there is none raises RuntimeError there. A CPU has no others.
    """
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # or cuBLAS refuses every product
    before = torch.are_deterministic_algorithms_enabled(), _memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    _memory.fill_uninitialized_memory = False  # it is a search for bugs, and costs time
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        _memory.fill_uninitialized_memory = before[1]


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
