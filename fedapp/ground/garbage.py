"""Python's search for garbage: it looks at every object, those of imported libraries too."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

NEW_OBJECTS = 10_000
"""After so many a search begins, in place of Python's own 700, which a handful of sites make."""


@contextmanager
def seldom_searched() -> Iterator[None]:
    """Search less often, and leave out the objects that there are now; in the end as before.

    torch and its like bring 350,000 of them, so that a full search takes 0.2 s. A run of 1,000
    sites made one every other round. What nobody uses goes at once all the same; only a circle of
    objects waits for a search, one of those that there are now until the end.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
