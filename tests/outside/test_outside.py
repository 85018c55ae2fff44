"""A researcher's own package, `lab`: methods, a loss, an averaging rule, a data set and a network.

Each is one file that is named `package.module:name` in a setting; nothing here is changed for it.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fedapp.experiment.config import from_plain, load_experiment, to_plain
from tests.flower.results import loopback, results, rows

HERE = Path(__file__).parent
FILES = sorted((HERE / "lab").glob("*.py"))
SETTINGS = {
    "data.image_size": 0,
    "split.num_clients": 4,
    "training.warmup_epochs": 4,
    "training.local_epochs": 2,
    "rounds.num_rounds": 3,
    "rounds.sample_rate": 1.0,
    "runtime.device": "cpu",
}
"""Over digits_demo."""
THEIRS = {
    "data.name": "digits",
    "model.name": "mlp",
    "method.name": "fedavg",
    "rounds.robust": "none",
}
OWN = {
    "data.name": "lab.data:spots",
    "model.name": "lab.network:bounded",
    "method.name": "lab.method:Smoothed",
    "rounds.robust": "lab.average:Slowing",
}


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))


def experiment(out, **named):
    fixed = {"runtime.out": str(out), "runtime.run_name": "run"}
    return load_experiment("digits_demo", {**SETTINGS, **named, **fixed})


def test_each_is_one_short_file():
    lengths = {path.stem: len(path.read_text().splitlines()) for path in FILES}
    assert lengths.pop("scaffold") <= 90
    assert len(lengths) == 8 and max(lengths.values()) <= 33


def test_all_four_learn_together_and_resume_to_the_same_bits(tmp_path):
    whole = experiment(tmp_path / "whole", **OWN)
    assert from_plain(to_plain(whole), "test") == whole
    folder = loopback(whole)
    assert rows(folder)[-1]["mean_test_accuracy"] > 0.9  # chance: a third
    short = experiment(tmp_path / "short", **OWN, **{"rounds.num_rounds": 2})
    loopback(short)
    runtime = replace(short.runtime, resume=True)
    longer = replace(short, runtime=runtime, rounds=replace(short.rounds, num_rounds=3))
    assert results(loopback(longer))["pool"] == results(folder)["pool"]


@pytest.mark.parametrize("key", OWN)
def test_each_takes_the_place_of_one_of_ours(tmp_path, key):
    ours, own = tmp_path / "ours", tmp_path / "own"
    plain = loopback(experiment(ours, **THEIRS, **{"rounds.num_rounds": 1}))
    mixed = loopback(experiment(own, **{**THEIRS, key: OWN[key], "rounds.num_rounds": 1}))
    assert results(mixed)["pool"] != results(plain)["pool"]


@pytest.mark.slow
def test_on_the_command_line(tmp_path):
    """In several processes, each of which finds the package by itself."""
    words = [f"{key}={value}" for key, value in {**SETTINGS, **OWN}.items()]
    place = f"runtime.out={tmp_path}", "runtime.run_name=run", "runtime.workers=2"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])])}
    command = [sys.executable, "-m", "fedapp", "run", "digits_demo", *words, *place]
    subprocess.run(command, env=env, check=True)
    alone = loopback(experiment(tmp_path / "alone", **OWN))
    assert rows(tmp_path / "run") == rows(alone)
