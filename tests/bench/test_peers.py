"""bench.peers: its bare loop is our FedAvg, its counts and marks are right, its errors one line."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
import typer
from safetensors.torch import load_file
from torch import nn
from typer.testing import CliRunner

from bench import record
from bench.peers import __main__ as command
from bench.peers import loop, ours, steps
from bench.peers.contenders import KINDS, LOOP, OURS, STEPS, Contender
from bench.peers.probes import EnoughError, Marks
from bench.peers.problem import Problem, Setting, apart, save_model, write
from bench.peers.turn import peak_mib
from fedapp.core.errors import ConfigError
from fedapp.data.split.manifest import TEST, TRAIN, VAL

SETTING = Setting(
    "toy",
    "digits",
    {"name": "resnet9", "width": 2, "dropout": 0.0},
    5,
    24,
    2,
    3,
    batch_size=8,
    epochs=2,
)
ROUNDS = 3


@pytest.fixture(scope="module")
def problem(tmp_path_factory) -> Problem:
    folder = tmp_path_factory.mktemp("peers") / "problem"
    write(SETTING, folder)
    return Problem.load(folder, evaluate=True, rounds=ROUNDS)


@pytest.fixture(scope="module")
def all_ran(problem):
    """By contender and evaluation: its marks, and the model at each of them."""
    return {
        (way, evaluate): ran(way, replace(problem, evaluate=evaluate))
        for way in (loop, steps, ours)
        for evaluate in (False, True)
    }


def ran(module, problem: Problem) -> tuple[Marks, list[dict[str, torch.Tensor]]]:
    """Run a contender; return its marks and the model at each of them."""
    marks = Marks(problem.rounds, problem.classes, problem.folder / "model.safetensors")
    models = []

    def mark(model):
        models.append({name: tensor.clone() for name, tensor in model().items()})
        marks(model)

    with pytest.raises(EnoughError):
        module.run(problem, mark)
    return marks, models


@pytest.mark.parametrize("evaluate", [False, True])
@pytest.mark.parametrize("way", [loop, steps])
def test_the_bare_loops_are_our_fedavg(problem, all_ran, way, evaluate):
    """Weights and statistics, after each of three rounds; three sites train, on six mini-batches.

    The tolerance is float32's rounding. Weights move by more than 1e-3 a round.
    """
    (_, bare), (_, here) = all_ran[way, evaluate], all_ran[ours, evaluate]
    assert len(bare) == len(here) == ROUNDS + 1
    for number, (model, other) in enumerate(zip(bare, here, strict=True)):
        assert model.keys() == other.keys()
        moved = max((model[n] - bare[0][n]).abs().max() for n in problem.start)
        assert moved > 1e-3 if number else moved == 0
        for name, tensor in model.items():
            torch.testing.assert_close(tensor, other[name], rtol=1e-5, atol=1e-6)


def test_images_are_counted_and_all_train_on_as_many(all_ran):
    held_out = 2 + 3
    wanted = {"trained": 2 * 3 * 24, "evaluated": 3 * held_out + 5 * held_out}
    assert [all_ran[way, True][0].images for way in (loop, steps, ours)] == [wanted] * 3


def test_sites_share_nothing_and_hold_what_the_setting_says(problem):
    seen = []
    for site in range(SETTING.sites):
        parts = [problem.manifest.indices(site, split) for split in (TRAIN, VAL, TEST)]
        assert [len(part) for part in parts] == [24, 2, 3]
        seen += [index for part in parts for index in part]
    assert sorted(seen) == list(range(SETTING.images))
    images, labels = problem.part(4, VAL)
    chosen = problem.manifest.indices(4, VAL)
    assert images.dtype == torch.float32 and images.shape == (2, 1, 8, 8)
    assert labels.tolist() == problem.pool.labels[torch.from_numpy(chosen)].tolist()


def test_a_mark_takes_no_time_of_a_round_and_the_last_one_ends_the_run(tmp_path, monkeypatch):
    clock = iter([1.0, 2.0, 5.0, 90.0, 92.5])
    monkeypatch.setattr("time.process_time", lambda: next(clock))
    marks = Marks(2, 10, tmp_path / "model.safetensors")
    marks(dict)
    marks(lambda: {"w": torch.ones(1)})  # 5 - 2; then writes the model, until 90
    with pytest.raises(EnoughError):
        marks(dict)
    assert marks.seconds == [3.0, 2.5]
    assert len(marks.faults) == 2 and min(marks.faults) >= 0
    assert load_file(tmp_path / "model.safetensors")["w"] == 1


def test_only_the_first_round_is_counted(tmp_path):
    marks, head = Marks(3, 10, tmp_path / "model.safetensors"), nn.Linear(4, 10)
    marks(dict)
    head(torch.zeros(7, 4))
    nn.Linear(4, 9)(torch.zeros(5, 4))
    with torch.inference_mode():
        head(torch.zeros(2, 4))
    marks(dict)
    head(torch.zeros(7, 4))
    assert marks.images == {"trained": 7, "evaluated": 2}


def test_how_far_two_updates_are_apart(tmp_path):
    """w_0 = (0, 0), v = (0, 5), w = (3, 1): |w - v| = 5, |v - w_0| = 5."""
    start = {"w": torch.zeros(2)}
    for name, values in {"v": [0.0, 5.0], "w": [3.0, 1.0]}.items():
        statistic = torch.full((1,), values[0])  # not compared
        save_model({"w": torch.tensor(values), "statistic": statistic}, tmp_path / name)
    assert apart(tmp_path / "w", tmp_path / "v", start) == 1
    assert apart(tmp_path / "v", tmp_path / "v", start) == 0
    save_model(start, tmp_path / "start")
    with pytest.raises(ZeroDivisionError):
        apart(tmp_path / "w", tmp_path / "start", start)


def test_peak_memory_is_read_from_proc():
    assert peak_mib("VmPeak:\t9 kB\nVmHWM:\t    2048 kB\nVmRSS:\t1 kB\n") == 2
    assert peak_mib(Path("/proc/self/status").read_text()) > 10


def test_a_contender_that_fails_is_named_in_one_line(tmp_path, problem):
    broken = Contender("FL-bench", "fl_bench", str(tmp_path))
    with pytest.raises(ConfigError, match=r"^FL-bench: .*No module named 'src'.*: install") as told:
        broken.turn(problem.folder, tmp_path / "out", evaluate=False, rounds=1)
    assert "\n" not in str(told.value)


def test_the_command_refuses_before_it_measures(tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("measured"))
    app = typer.Typer()
    app.command()(command.main)
    checkouts = [([f"--{name.lower()}", str(tmp_path)], f"--{name.lower()} .*: has no .*: give the")
                 for name in KINDS]  # fmt: skip
    known = "--sites 7: no such setting: give one of 20, 100, 1000"
    for words, said in (*checkouts, (["--sites", "7"], known), (["--only", "x"], "--only x: give")):
        done = CliRunner().invoke(app, words)
        assert isinstance(done.exception, ConfigError)
        assert re.match(said, str(done.exception)) and "\n" not in str(done.exception)


def test_nothing_of_this_project_is_imported_before_the_path_is_set():
    """Else an earlier checkout could not take this one's place."""
    asked = "import sys, bench.peers.turn; print([m for m in sys.modules if m[:6] == 'fedapp'])"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_the_command_measures_and_compares(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(command, "SETTINGS", command.TOY)
    command.main(turns=1)
    result = json.loads((tmp_path / "peers-4.json").read_text())
    assert result["command"] == "python -m bench.peers --turns 1 --sites 4"
    rows = {(row["who"], row["evaluation"]): row for row in result["rows"]}
    every = LOOP, STEPS, OURS
    assert len(result["rows"]) == 6
    assert rows.keys() == set(product(every, ("with", "without")))
    for (who, evaluation), row in rows.items():
        assert row["trained on"] == 2 * 20 and row["update apart"] < 1e-5
        assert bool(row["evaluated"]) == (evaluation == "with")
        assert row["median_s"] > 0 and row["peak_mib"] > 100
        assert row["ratio"] == 1 or who != LOOP
        assert row["of_our_steps"] == 1 or who != STEPS
