"""Room for a site's inputs: in memory or, where they are many, in a temporary file.

The system pages such a file in and out, so that a process holds what it works on and not all there
is. No copy of an image is left when the process ends.
"""

import math
import mmap
import os
import tempfile
from collections.abc import Sequence

import torch
from torch import Tensor

from fedapp.core.errors import DataError
from fedapp.core.formatting import size

MAX_BYTES_IN_MEMORY = 2**28
"""Bytes that are held in memory: 1,800 colour images of 224 pixels."""
_CHUNK = 64
"""Inputs copied at a time."""


def allocate(shape: Sequence[int], dtype: torch.dtype = torch.uint8, all_in_all: int = 0) -> Tensor:
    """Return a tensor to be filled, on the CPU. Raises DataError where the disk has no room.

    all_in_all: bytes of all that it is a part of; 0: of itself.
    """
    needed = math.prod(shape) * dtype.itemsize
    if not needed or (all_in_all or needed) <= MAX_BYTES_IN_MEMORY:
        return torch.empty(*shape, dtype=dtype)
    folder = _folder()
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, needed)  # a full disk is known now, not later
            pages = mmap.mmap(file.fileno(), needed)
    except OSError as error:
        raise DataError(
            f"{folder}: no room for {size(needed)} of decoded images ({error.strerror}): free "
            "some, or set TMPDIR to a folder that has it"
        ) from error
    return torch.frombuffer(pages, dtype=dtype).view(*shape)


def gather_rows(inputs: Tensor, rows: Sequence[int]) -> Tensor:
    """Return these rows of inputs [n, ...], copied."""
    chosen = torch.tensor(rows, dtype=torch.int64)
    out = allocate((len(rows), *inputs.shape[1:]), inputs.dtype, inputs.nbytes)
    for start in range(0, len(rows), _CHUNK):
        some = slice(start, start + _CHUNK)
        out[some] = inputs[chosen[some]]
    return out


def _folder() -> str:
    """Return where to lay files: TMPDIR, or /var/tmp, as /tmp may itself be memory."""
    told = os.environ.get("TMPDIR", "/var/tmp")  # noqa: S108  the file gets no name there
    return told if os.access(told, os.W_OK) else tempfile.gettempdir()
