"""The whole compose file as containers, faults included: needs a container engine and the image."""

import pytest

from fedapp.core.errors import FedAppError
from tests.deploy import container_trial
from tests.deploy.containers import compose_tool, engine_of, said


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_trial_in_containers_holds():
    try:
        said(engine_of(compose_tool()), "image", "inspect", "fedapp:cpu")
    except FedAppError as error:
        pytest.skip(f"needs an engine with the image fedapp:cpu: {error}")
    assert container_trial.main() == 0
