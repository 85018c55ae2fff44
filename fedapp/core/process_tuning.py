"""What a process of this project sets for itself: its memory, and Python's search for garbage.

Only in processes that this project starts. Where it is used as a library, in somebody's notebook or
program, everything stays as the host has it.
"""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

TRIM_THRESHOLD, MMAP_MAX = -1, -4
"""Names of two settings in glibc's malloc.h: see mallopt(3)."""
TRIM_ABOVE_BYTES = 1 << 30
"""Bytes at the end of the heap; more than that goes back to the system."""
COLLECTION_THRESHOLD = 10_000
"""After so many a search for garbage begins, in place of Python's own 700, which a handful of sites
make."""


@cache
def tune_own_process() -> None:
    """Say that this process is this project's own, and let it keep the memory that it frees.

    glibc gives large blocks back at once. Each training step then gets all its memory anew, and the
    system clears it page by page: a fifth of a round's processor time with 100 sites of 100 images,
    a third with a layer of 51 MB. Without effect where the C library is another one.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS; Windows
        return
    mallopt(TRIM_THRESHOLD, TRIM_ABOVE_BYTES)
    mallopt(MMAP_MAX, 0)


@contextmanager
def rare_garbage_collection() -> Iterator[None]:
    """Search for garbage less often in a process of ours; in the end as before.

    torch and its like bring 350,000 objects, so that a full search takes 0.2 s; a run of 1,000
    sites made one every other round. Those that there are now are left out. What nobody uses goes
    at once all the same; only a circle of objects waits for a search, one of those that there are
    now until the end.
    """
    if not tune_own_process.cache_info().currsize:  # nobody has said so
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
