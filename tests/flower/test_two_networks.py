"""Methods whose sites remember something through Flower: the bits of loopback, also after a cut."""

from functools import partial

import pytest
from flwr.supercore.task_identity import TaskIdentity

from fedapp.experiment.config import load_experiment
from tests.flower.grids import MemoryGrid, preset, serve, sites
from tests.flower.results import assert_resumed_to_the_same_bits, loopback, results, rows

OVER = {
    "data.subset": 300,
    "split.num_clients": 3,
    "split.deal": "uneven_labels",
    "split.test_images": 60,
    "split.label_share": 0.4,
    "model.width": 2,
    "training.warmup_epochs": 0,
    "training.local_epochs": 1,
    "training.batch_size": 16,
    "training.learning_rate": 0.05,
    "rounds.num_rounds": 4,
    "rounds.sample_rate": 0.67,
    "runtime.device": "cpu",
}
"""Over digits_demo."""
SQUARES = {
    "method.keep_optimiser": True,
    "training.optimiser": "rmsprop",
    "training.learning_rate": 1e-3,
}
"""Sites that keep RMSprop's running squares."""
METHODS = {
    "fedsiam_mt": {},
    "fedsiam_d": {"method.calm_rounds": 1, "method.saved_share": 0.3},
    "fedsem": {"method.labelled_rounds": 2},
    "rscfed": {},
    "fedrgd": {},
    "mixmatch_avg": {},
    "flexproto": SQUARES,
    "protofssl": SQUARES,
}


@pytest.fixture(autouse=True)
def of_flower(monkeypatch):
    """Be the process of a Flower run."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def small(name, out):
    fixed = {"method.preset": name, "runtime.out": str(out), "runtime.run_name": "run"}
    return load_experiment("digits_demo", {**OVER, **METHODS.get(name, {}), **fixed})


@pytest.mark.parametrize("name", METHODS)
def test_loopback_and_flower_give_the_same_bits(tmp_path, name):
    here = loopback(small(name, tmp_path / "loopback"))
    experiment = small(name, tmp_path / "flower")
    (tmp_path / "flower").mkdir()
    grid = MemoryGrid(sites({"preset": preset(experiment, tmp_path)}, 3))
    _, there = serve(experiment, grid)
    assert results(here) == results(there.path)
    assert all(not row["skipped"] for row in rows(here))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("cut", [4, 7, 9])
def test_a_run_that_is_cut_and_resumed_ends_in_the_same_bits(tmp_path, monkeypatch, name, cut):
    """cut: the exchange in which the power goes, after its first answer."""
    assert_resumed_to_the_same_bits(monkeypatch, partial(small, name), tmp_path, cut)
