"""What a shell offers while a command is typed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedapp.experiment.completion import (
    complete_grid,
    complete_methods,
    complete_override,
    complete_preset,
    complete_run,
    setting_keys,
)
from fedapp.experiment.config import config_keys

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("complete", "typed", "offered"), [
    (complete_preset, "digits_", "digits_demo digits_server digits_sites"),
    (complete_preset, "nothing", ""),
    (complete_grid, "fashion_mnist_sm", "fashion_mnist_small"),
    (complete_grid, "smal", "small"),
    (complete_methods, "fedb", "fedbn fedbn_sl"),
    (complete_methods, "fedavg,loc", "fedavg,local_only"),
    (complete_override, "training.le", "training.learning_rate="),
    (complete_override, "method.preset=fedavg_s", "method.preset=fedavg_sl"),
    (complete_override, "seed=3", ""),
])  # fmt: skip
def test_names_keys_and_values(complete, typed: str, offered: str) -> None:
    assert complete(typed) == offered.split()


def test_every_key_is_one_and_of_the_groups_none_is_lacking() -> None:
    offered, there = {*setting_keys()}, {*config_keys()}
    assert offered <= there
    lacking = there - offered
    assert {key.partition(".")[0] for key in lacking} <= {"method", "model"}, lacking


def test_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDAPP_OUT", str(tmp_path))
    assert complete_run("") == []
    for age, name in enumerate(("new", "newer", "other")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
        os.utime(tmp_path / name / "run.json", (age, age))
    assert complete_run("ne") == ["newer", "new"], "the newest first"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("fedapp run digits_d", "digits_demo"),
        ("fedapp run digits_demo training.lea", "training.learning_rate="),
        ("fedapp compare smal", "small"),
        ("fedapp wat", "watch"),
    ],
)
def test_a_shell_is_answered_without_torch(typed: str, offered: str) -> None:
    """As zsh asks; `-X importtime` lists what was imported on the way."""
    program = "import sys; sys.argv = ['fedapp']; from fedapp.__main__ import main; main()"
    asked = {"_FEDAPP_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": typed}
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", program],
        cwd=ROOT,
        env=os.environ | asked,
        capture_output=True,
        text=True,
    )
    assert offered in done.stdout, done.stderr[-500:]
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "fedapp.cli" in imported and not {"torch", "flwr"} & imported
