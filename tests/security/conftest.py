"""What the tests of security share."""

from collections.abc import Iterator

import pytest
from flwr.supercore.task_identity import TaskIdentity


@pytest.fixture(autouse=True, scope="session")
def identity() -> Iterator[None]:
    """Be the process of a run: Flower's messages take their sender from it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_task_id", "_run_id", "_node_id"):
            patch.setattr(TaskIdentity, name, 1)
        yield
