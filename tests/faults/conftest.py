"""One federation for all faults: each is a new run on it, and puts right what it broke."""

import signal
import tempfile
from pathlib import Path

import pytest

from tests.deployment import BIN
from tests.faults.federation import SITES, federation
from tests.faults.runs import until


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in Path(item.fspath).parents:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(3600))
            if not (BIN / "flower-supernode").exists():
                item.add_marker(pytest.mark.skip(reason="Flower is not installed"))


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    # Tests that are cut off leave none of these programs behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (
        tempfile.TemporaryDirectory(prefix="um-", ignore_cleanup_errors=True) as scratch,
        federation(folder, Path(scratch)) as made,
    ):
        yield made


@pytest.fixture
def here(whole):
    """The federation with all its sites in, whatever a test before has left."""
    for cable in whole.cables:
        cable.mend()
    for program in (whole.superexec, *whole.nodes):
        if not program.pids():
            program.start()
    until(lambda: whole.online() == len(SITES), "three sites online")
    return whole
