"""What every test of the Flower side needs."""

from types import SimpleNamespace

import pytest
from flwr.supercore.task_identity import TaskIdentity

from server_app import node_registry, transport


@pytest.fixture(autouse=True)
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be the process of a run: Flower's messages take their sender from it."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The server's clock, which only its own sleep, or the test, moves: nothing depends on speed.

    sleeps: the seconds of each sleep.
    """
    now = SimpleNamespace(seconds=1000.0, sleeps=[])

    def sleep(seconds: float) -> None:
        now.sleeps.append(seconds)
        now.seconds += seconds

    fake = SimpleNamespace(monotonic=lambda: now.seconds, sleep=sleep)
    for module in (transport, node_registry):
        monkeypatch.setattr(module, "time", fake)
    return now
