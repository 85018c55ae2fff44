"""Findings over Flower: own folders with a column each, at nodes and in its simulation."""

import json
from dataclasses import replace

import pytest

from fedapp.experiment.config import load_experiment
from tests.data.test_own_findings import three
from tests.flower.grids import MemoryGrid, node, preset, serve
from tests.flower.results import loopback, results
from tests.flower.simulation import copy_of_app, simulate_and_loop_back
from tests.own import NAMES, agreed, experiment


def wanted(tmp_path, method):
    """An experiment of three sites' findings."""
    root = three(tmp_path / "data")
    return experiment(
        root,
        data=agreed(classes="", findings="Effusion, mass", root=str(root)),
        method=load_experiment("digits_demo", {"method.preset": method}).method,
        runtime__out=str(tmp_path / "runs"),
    )


@pytest.mark.parametrize("method", ["fedavg", "recommended"])
def test_three_real_sites_are_the_loopback_run_bit_for_bit(tmp_path, method):
    said = wanted(tmp_path, method)
    whole = loopback(replace(said, runtime=replace(said.runtime, run_name="loopback")))
    run_config = {"preset": preset(said, tmp_path)}
    nodes = {
        100 + k: node(run_config, **{"site-name": name, "data-path": f"{tmp_path}/data/{name}"})
        for k, name in enumerate(reversed(NAMES))
    }
    summary, folder = serve(said, MemoryGrid(nodes))
    assert results(folder.path) == results(whole)
    assert [row["class"] for row in summary["by_class"]] == ["Effusion", "mass"]


@pytest.mark.slow
def test_a_simulation_is_the_loopback_run_bit_for_bit(tmp_path):
    file = preset(wanted(tmp_path, "recommended"), tmp_path)
    with copy_of_app(tmp_path) as copy:
        _, whole, _ = simulate_and_loop_back(copy, file, {})
    summary = json.loads((whole / "summary.json").read_text())
    assert all(row["read"] for row in summary["by_class"])
