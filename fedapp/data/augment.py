"""Placeholder until the real one comes."""

import torch
from torch import Tensor


def flips(name: str) -> bool:
    """Whether."""
    return False


def weak(images: Tensor, flip: bool, stream: torch.Generator) -> Tensor:
    """Weak."""
    return images


def strong(images: Tensor, flip: bool, stream: torch.Generator) -> Tensor:
    """Strong."""
    return images
