"""Random draws keyed by (seed, purpose, round, site).

No generator's state is carried from one draw to the next. Neither resuming a run, nor the number of
workers, nor the order of replies can therefore change a result.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

Key = int | str


def key(seed: int, purpose: str, *parts: Key) -> int:
    """Return a 63-bit integer that depends on all arguments and on nothing else.

    The type of each part and the boundaries between parts count: ("a", 1), ("a", "1") and ("a1",)
    give different keys.
    """
    text = json.dumps([seed, purpose, *parts])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def numpy_stream(seed: int, purpose: str, *parts: Key) -> np.random.Generator:
    """Return a fresh NumPy generator for this purpose."""
    return np.random.default_rng(key(seed, purpose, *parts))


def torch_stream(seed: int, purpose: str, *parts: Key) -> torch.Generator:
    """Return a fresh CPU torch generator for this purpose."""
    return torch.Generator().manual_seed(key(seed, purpose, *parts))


@contextmanager
def seeded(device: torch.device, seed: int, purpose: str, *parts: Key) -> Iterator[None]:
    """Seed torch's global generators (dropout draws from them) and restore them afterwards."""
    number = key(seed, purpose, *parts)
    if device.type == "cuda":
        with torch.random.fork_rng(devices=[device]):
            torch.manual_seed(number)
            yield
        return
    # torch.manual_seed would format a stack trace at every call on a machine without a GPU.
    generator = torch.default_generator
    state = generator.get_state()
    generator.manual_seed(number)
    try:
        yield
    finally:
        generator.set_state(state)
