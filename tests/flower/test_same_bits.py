"""Methods whose messages are unlike FedAvg's, through Flower's two halves: the bits of loopback.

That every method bears cuts is checked by `tests/methods/test_every_method.py`, at its defaults.
Here are the cuts of what sites keep by settings that are off by default.
"""

from functools import partial

import pytest

from fedapp.experiment.config import load_experiment
from tests.flower.grids import MemoryGrid, preset, serve, sites
from tests.flower.results import assert_resumed_to_the_same_bits, loopback, results, rows
from tests.methods.test_labels_at_server import server

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
METHODS = {
    "fedsiam_mt": {},
    "fedsiam_d": {"method.calm_rounds": 1, "method.saved_share": 0.3},
    "rscfed": {},
    "flexproto": {
        "method.keep_optimiser": True,  # sites keep RMSprop's running squares
        "training.optimiser": "rmsprop",
        "training.learning_rate": 1e-3,
    },
}
AT_THE_SERVER = ("fixbn", "fedmatch", "fedsiam_d", "um_pfssl")
"""With labels at the server: parts, roles beside the model, and models of other sites travel."""


def small(name, out):
    fixed = {"method.preset": name, "runtime.out": str(out), "runtime.run_name": "run"}
    return load_experiment("digits_demo", {**OVER, **METHODS[name], **fixed})


@pytest.mark.parametrize(
    "make",
    [partial(small, name) for name in METHODS] + [partial(server, name) for name in AT_THE_SERVER],
    ids=[*METHODS, *(f"{name} with labels at the server" for name in AT_THE_SERVER)],
)
def test_loopback_and_flower_give_the_same_bits(tmp_path, make):
    here = loopback(make(tmp_path / "loopback"))
    experiment = make(tmp_path / "flower")
    (tmp_path / "flower").mkdir()
    _, there = serve(experiment, MemoryGrid(sites({"preset": preset(experiment, tmp_path)}, 3)))
    assert results(here) == results(there.path)
    assert all(not row["skipped"] for row in rows(here))


@pytest.mark.parametrize("name", ["fedsiam_d", "flexproto"])
@pytest.mark.parametrize("cut", [4, 7, 9])
def test_a_run_that_is_cut_and_resumed_ends_in_the_same_bits(tmp_path, monkeypatch, name, cut):
    """cut: the exchange in which the power goes, after its first answer."""
    assert_resumed_to_the_same_bits(monkeypatch, partial(small, name), tmp_path, cut)
