"""The federation of docker/compose.yaml, as real processes on loopback, started once."""

import pytest

from fedapp.tools.deploy.compose_local import APP, federation, has_gateway


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Three SuperNodes, the SuperLink and, where nginx is installed, the gateway; all are up."""
    folder = tmp_path_factory.mktemp("federation")
    with federation(APP / "docker/compose.yaml", folder, gateway=has_gateway()) as made:
        for name in ("superexec", "north", "south", "west"):
            made.start(name)
        yield made
