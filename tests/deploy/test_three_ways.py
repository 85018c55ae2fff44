"""One preset by loopback, by simulation and on real SuperNodes over TLS: the same bits."""

import json

import pytest

from fedapp.config import load_experiment
from tests.flower.results import loopback, results, rows
from tests.flower.simulation import copy_of_app, simulate

TINY = {
    "split.num_clients": 3,
    "model.width": 4,
    "training.warmup_epochs": 1,
    "training.local_epochs": 1,
    "rounds.num_rounds": 2,
    "rounds.sample_rate": 1.0,
    "rounds.join_wait_s": 300.0,
    "method.helper_list_size": 2,
    "method.num_replaced": 1,
}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_loopback_simulation_and_supernodes_agree_to_the_bit(made, tmp_path):
    out = {"runtime.out": str(tmp_path / "runs")}
    alone = loopback(load_experiment("digits_demo", {**TINY, **out, "runtime.run_name": "alone"}))
    pairs = [f"{key}={value}" for key, value in (TINY | out).items()]
    with copy_of_app(tmp_path) as copy:
        code, said = simulate(copy, ["digits_demo", *pairs, "runtime.run_name=simulated"])
    assert code == 0, said
    simulated = tmp_path / "runs/simulated"
    words = {"preset": "digits_demo", **TINY, "runtime.run_name": "deployed"}
    config = " ".join(f"{key}={json.dumps(value)}" for key, value in words.items())
    run = made.run(
        "register", "flwr", "run", "/app", "hospitals", "--stream", "--run-config", config
    )
    deployed = made.volume("runs") / "deployed"
    assert (deployed / "summary.json").is_file(), run.stdout

    assert [row["skipped"] for row in rows(alone)] == [{}, {}, {}]
    assert results(alone) == results(simulated) == results(deployed)
    sites = {(folder / "per_site.csv").read_text() for folder in (alone, simulated, deployed)}
    assert len(sites) == 1
