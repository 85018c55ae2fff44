"""A site whose memory is used up."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from tests.faults.programs import Program

TOO_LITTLE = 1600 * 2**20
"""Bytes of address space: enough for Flower's programs, half of what PyTorch asks for."""
NONE_LEFT = "failed to map segment from shared object"
"""What the system says when PyTorch cannot be loaded."""


@contextmanager
def too_little_memory(site: Program) -> Iterator[None]:
    """Let a site's programs have less memory than PyTorch needs: those there are, those to come."""
    _limit(site, TOO_LITTLE)
    site.signal(signal.SIGKILL, "client_app.resident.worker")
    try:
        yield
    finally:
        _limit(site, resource.RLIM_INFINITY)


def _limit(site: Program, most: int) -> None:
    # The SuperExec first: what it starts from now on has its limit.
    for word in ("flower-superexec", "flwr-clientapp", "client_app.resident.worker"):
        for pid in site.pids(word):
            try:
                _, hard = resource.prlimit(pid, resource.RLIMIT_AS)
                resource.prlimit(pid, resource.RLIMIT_AS, (most, hard))
            except ProcessLookupError:
                continue
