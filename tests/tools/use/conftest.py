"""Three sites with digits of their own as PNG files, their run, and their models."""

import pytest

from examples.demo_images import SITES, write_sites
from fedapp.data.inputs import DataSet
from fedapp.data.published import read_digits
from fedapp.server.finished_run import finished_run
from fedapp.tools.site_models import checked_models
from tests.flower.results import loopback
from tests.own import agreed, experiment


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("demo")
    pool = read_digits()
    some = slice(0, 300)
    chosen = DataSet(pool.inputs[some], pool.labels[some], pool.classes, pool.mean, pool.std)
    write_sites(root / "images", chosen)
    data = agreed(
        root=str(root / "images"), classes=", ".join(pool.classes), sites=", ".join(SITES)
    )
    folder = loopback(experiment(root, data=data, runtime__out=str(root / "runs")))
    checked_models(finished_run(folder))
    return folder


@pytest.fixture
def model(run):
    return run / "models" / "north"


@pytest.fixture
def images(run):
    return run.parents[1] / "images"
