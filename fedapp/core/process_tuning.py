"""Tuning of our own processes: the allocator (glibc's malloc) and Python's garbage collector.

Only processes that this project starts are tuned. Where it is used as a library, in somebody's
notebook or program, everything stays as the host has set it.
"""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

TRIM_THRESHOLD, MMAP_MAX = -1, -4
"""M_TRIM_THRESHOLD and M_MMAP_MAX of glibc's malloc.h: see mallopt(3)."""
TRIM_ABOVE_BYTES = 1 << 30
"""Free memory at the end of the heap above which glibc returns it to the system."""
COLLECTION_THRESHOLD = 10_000
"""New objects after which a garbage collection starts. Python's own threshold of 700 is reached by
a handful of sites already."""


@cache
def tune_own_process() -> None:
    """Declare this process to be our own, and make its allocator keep the memory that is freed.

    By default glibc returns large blocks to the system at once. Every training step then requests
    all its memory again, and the system clears it page by page: a fifth of a round's processor time
    with 100 sites of 100 images, a third with a layer of 51 MB. With another C library this only
    declares the process to be our own.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS; Windows
        return
    mallopt(TRIM_THRESHOLD, TRIM_ABOVE_BYTES)
    mallopt(MMAP_MAX, 0)


@contextmanager
def rare_garbage_collection() -> Iterator[None]:
    """Collect garbage less often inside this context, in a process of our own.

    PyTorch and other libraries hold 350,000 objects, so that a full collection takes 0.2 s, and a
    run of 1,000 sites made one every other round. Objects that exist at the beginning are excluded
    (`gc.freeze`). Reference counting still frees objects at once; only reference cycles wait for a
    collection, and cycles among the excluded objects wait until the end of the context.
    """
    if not tune_own_process.cache_info().currsize:  # the process belongs to somebody else
        yield
        return
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(COLLECTION_THRESHOLD, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
