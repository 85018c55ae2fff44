"""python -m bench: all benchmarks in turn; one that fails does not keep the others back."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import typer
from typer.testing import CliRunner

from bench import __main__ as runner
from bench import apart, record


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands that would have been run; bench.training fails."""
    commands: list[list[str]] = []

    def run(command: list[str], check: bool) -> SimpleNamespace:
        commands.append(command[2:])
        return SimpleNamespace(returncode=3 if "bench.training" in command else 0)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return commands


def bench(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(runner.main)
    done = CliRunner().invoke(app, list(arguments))
    return done.exit_code, done.output


def test_all_are_run_though_one_fails_and_then_the_tables_written(ran):
    code, said = bench()
    names = [f"bench.{b.module}" for b in runner.BENCHMARKS.values() if not b.needs_gpu]
    assert ran == [*([name] for name in names), ["bench.tables"]]
    assert code == 1 and "training FAILED with exit code 3" in said
    assert "gpu left out: no GPU here" in said and said.endswith("bench: failed: training\n")


def test_the_named_ones_are_run(ran):
    code, _ = bench("overhead", "scoring")
    assert code == 0
    assert ran == [["bench.overhead"], ["bench.scoring"], ["bench.tables"]]


def test_toys_leave_results_and_tables_alone(ran):
    code, _ = bench("--quick", "scoring", "gpu")
    assert code == 0
    assert [command[0] for command in ran] == ["bench.apart", "bench.apart"]
    assert [command[2:] for command in ran] == [
        ["bench.scoring", *runner.BENCHMARKS["scoring"].toy],
        ["bench.gpu", "--toy"],
    ]


def test_an_unknown_name_is_refused_before_anything_runs(ran):
    code, said = bench("scoring", "nosuch")
    assert code == 2 and "no benchmark nosuch; there are scoring, " in said and not ran


def test_a_module_run_apart_saves_elsewhere(tmp_path, monkeypatch, capsys):
    (tmp_path / "toy_benchmark.py").write_text(
        "import sys\nfrom bench.record import save\nsave('toy', [{'given': sys.argv[1]}])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(record, "RESULTS", record.RESULTS)
    monkeypatch.setattr(sys, "argv", ["apart", str(tmp_path / "out"), "toy_benchmark", "--quick"])
    apart.main()
    assert '"given": "--quick"' in (tmp_path / "out" / "toy.json").read_text()
