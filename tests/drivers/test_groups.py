"""Runs whose sites train as one batch (`runtime.grouped`): the same numbers in every driver."""

import pytest
from flwr.supercore.task_identity import TaskIdentity

from fedapp.experiment.config import load_experiment
from fedapp.learn import together
from tests.flower.grids import MemoryGrid, preset, serve, sites
from tests.flower.results import loopback, results

OVER = {
    "data.subset": 400,
    "split.num_clients": 5,
    "model.width": 2,
    "training.warmup_epochs": 2,
    "training.local_epochs": 2,
    "training.batch_size": 16,
    "rounds.num_rounds": 2,
    "rounds.sample_rate": 0.8,
    "runtime.device": "cpu",
    "runtime.run_name": "run",
}
METHODS = (
    "fedavg", "fedprox", "fedavg_ft", "ditto", "fedrod", "fixavg", "sage", "local_only",
    "prior_shift", "recommended", "um_pfssl_mi",
)  # fmt: skip


def run(out, preset_name, **over):
    given = {**OVER, "method.preset": preset_name, "runtime.out": str(out), **over}
    return load_experiment("digits_demo", given)


def outcome(experiment):
    return results(loopback(experiment))


@pytest.mark.parametrize("name", METHODS)
def test_neither_processes_nor_the_size_of_groups_change_a_bit(name, tmp_path, monkeypatch):
    whole = outcome(run(tmp_path / "whole", name, **{"runtime.grouped": True}))
    two = {"runtime.grouped": True, "runtime.workers": 2}
    assert outcome(run(tmp_path / "two", name, **two)) == whole
    for module in ("fedapp.learn.together", "fedapp.drivers.calls"):
        monkeypatch.setattr(f"{module}.MEMBERS", 3)
    assert outcome(run(tmp_path / "three", name, **{"runtime.grouped": True})) == whole


def test_sites_that_are_asked_one_by_one_give_the_same_bits(tmp_path, monkeypatch):
    """As in Flower: a site by itself is a group of one."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    whole = outcome(run(tmp_path / "whole", "recommended", **{"runtime.grouped": True}))
    experiment = run(tmp_path, "recommended", **{"runtime.grouped": True})
    grid = MemoryGrid(sites({"preset": preset(experiment, tmp_path)}, experiment.split.num_clients))
    assert results(serve(experiment, grid)[1].path) == whole


def test_a_group_is_not_the_loop_to_the_bit_and_as_good(tmp_path):
    plain = {"model.dropout": 0.0}  # whose draws are others in a group
    grouped = outcome(run(tmp_path / "grouped", "fedavg", **plain, **{"runtime.grouped": True}))
    looped = outcome(run(tmp_path / "looped", "fedavg", **plain))
    assert grouped["rows"] != looped["rows"]
    mine, theirs = (found["rows"][-1]["mean_test_accuracy"] for found in (grouped, looped))
    assert mine == pytest.approx(theirs, abs=0.05)


@pytest.mark.parametrize(("name", "over", "why"), [
    ("fedavg", {"training.optimiser": "adam"}, "groups descend by sgd"),
    ("fedrod", {}, "a step of FedRoD's trains two heads"),
    ("pfedme", {}, "pFedMe goes several steps down"),
    ("fedmatch", {}, "a step of FedMatch's goes down two losses"),
])  # fmt: skip
def test_it_says_once_why_sites_train_one_by_one(tmp_path, caplog, name, over, why):
    together.say_one_by_one.cache_clear()
    loopback(run(tmp_path, name, **{"runtime.grouped": True, **over}))
    assert caplog.text.count(why) == 1
