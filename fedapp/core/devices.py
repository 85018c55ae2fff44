"""What PyTorch computes with: CPU threads, device, number format and deterministic algorithms."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fedapp.core.errors import ConfigError

_memory: Any = torch.utils.deterministic  # mypy does not see its attribute, made at import


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Fix the number of PyTorch's CPU threads: the bits of a convolution depend on it."""
    before = torch.get_num_threads()
    if before == threads:  # setting the same number again still takes as long as a small layer
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Make a GPU use only algorithms that give the same bits every time, if `wanted`.

    An operation that has no such algorithm raises RuntimeError inside. On a CPU every algorithm is
    deterministic already.
    """
    if not wanted:
        yield
        return
    # Without this setting cuBLAS refuses every matrix product in deterministic mode.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled(), _memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    _memory.fill_uninitialized_memory = False  # it is a debugging aid that costs time
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        _memory.fill_uninitialized_memory = before[1]


def pick_device(setting: str) -> torch.device:
    """Return the device that `runtime.device` asks for; raise ConfigError if there is none here."""
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
