"""Memory for a site's inputs: in RAM or, if there are many, in a temporary file that is mapped.

The system pages such a file in and out, so that a process holds only what it currently uses. The
file has no name, so that no copy of an image remains when the process ends.
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
"""Bytes that are held in RAM: 1,800 colour images of 224 pixels."""
_CHUNK = 64
"""Inputs copied at a time."""


def allocate(shape: Sequence[int], dtype: torch.dtype = torch.uint8, all_in_all: int = 0) -> Tensor:
    """Return an uninitialised tensor on the CPU. Raises DataError where the disk has no room.

    all_in_all: bytes of the whole that this tensor is a part of; 0: the bytes of the tensor itself.
    """
    needed = math.prod(shape) * dtype.itemsize
    if not needed or (all_in_all or needed) <= MAX_BYTES_IN_MEMORY:
        return torch.empty(*shape, dtype=dtype)
    folder = _folder()
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(
                file.fileno(), 0, needed
            )  # fails now, not later, if the disk is full
            pages = mmap.mmap(file.fileno(), needed)
    except OSError as error:
        raise DataError(
            f"{folder}: no room for {size(needed)} of decoded images ({error.strerror}): free "
            "some, or set TMPDIR to a folder that has it"
        ) from error
    return torch.frombuffer(pages, dtype=dtype).view(*shape)


def gather_rows(inputs: Tensor, rows: Sequence[int]) -> Tensor:
    """Return a copy of these rows of inputs [n, ...]."""
    chosen = torch.tensor(rows, dtype=torch.int64)
    out = allocate((len(rows), *inputs.shape[1:]), inputs.dtype, inputs.nbytes)
    for start in range(0, len(rows), _CHUNK):
        some = slice(start, start + _CHUNK)
        out[some] = inputs[chosen[some]]
    return out


def _folder() -> str:
    """Return the folder for temporary files: TMPDIR or /var/tmp, because /tmp may be in RAM."""
    folder = os.environ.get("TMPDIR", "/var/tmp")  # noqa: S108  the file has no name
    return folder if os.access(folder, os.W_OK) else tempfile.gettempdir()
