"""Counts the training work of a site: optimiser steps, and the images that went into them.

Counting influences nothing: results with and without it are equal to the bit.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass
class WorkCount:
    """The work of one task.

    steps: of every optimiser of all networks of a site.
    images: of all mini-batches, counting each view and each repetition; a mini-batch that several
        consecutive steps use counts once.
    """

    steps: int = 0
    images: int = 0


_NOW: ContextVar[WorkCount | None] = ContextVar("worked", default=None)


@contextmanager
def counting_work() -> Iterator[WorkCount]:
    """Count the work that is done within the context."""
    done = WorkCount()
    token = _NOW.set(done)
    try:
        yield done
    finally:
        _NOW.reset(token)


def count_work(steps: int = 0, images: int = 0) -> None:
    """Add to the counts of the current task; outside `counting_work` nothing is counted."""
    if (done := _NOW.get()) is not None:
        done.steps += steps
        done.images += images
