"""How much a site learned: optimiser steps, and images that went into them.

What is counted decides nothing: a run with and without it has the same bits.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass
class WorkCount:
    """Counts of one task.

    steps: by every optimiser, of all of a site's networks. images: of the mini-batches, each view
    and each repeat counted; a mini-batch that several steps use one after the other counts once.
    """

    steps: int = 0
    images: int = 0


_NOW: ContextVar[WorkCount | None] = ContextVar("worked", default=None)


@contextmanager
def counting_work() -> Iterator[WorkCount]:
    """Count what is done inside."""
    done = WorkCount()
    token = _NOW.set(done)
    try:
        yield done
    finally:
        _NOW.reset(token)


def count_work(steps: int = 0, images: int = 0) -> None:
    """Add to the counts of the task under way; outside of one nothing is counted."""
    if (done := _NOW.get()) is not None:
        done.steps += steps
        done.images += images
