"""python -m bench, and the harness: all in turn, toys leave no trace, an error is one line."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from bench import __main__ as runner
from bench import command, measure, record, runs
from bench.measure import Times
from fedapp.core.errors import ConfigError
from tests.small import small


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands that would have been run; bench.training fails."""
    commands: list[list[str]] = []

    def run(command: list[str], check: bool) -> SimpleNamespace:
        commands.append(command[2:])
        return SimpleNamespace(returncode=3 if "bench.training" in command else 0)

    monkeypatch.setattr(subprocess, "run", run)
    return commands


@pytest.mark.parametrize(("words", "commands", "code", "said"), [
    ([], [*([f"bench.{name}"] for name in runner.BENCHMARKS), ["bench.tables"]], 1,
     "training FAILED with exit code 3"),
    (["peers", "scoring"], [["bench.peers"], ["bench.scoring"], ["bench.tables"]], 0, ""),
    (["--quick", "scoring"], [["bench.scoring", "--quick"]], 0, ""),  # no tables of toys
    (["scoring", "nosuch"], [], 2, "no benchmark nosuch; there are scoring, "),
])  # fmt: skip
def test_which_are_run_and_then_the_tables_written(ran, words, commands, code, said):
    app = typer.Typer()
    app.command()(runner.main)
    done = CliRunner().invoke(app, words)
    assert (ran, done.exit_code) == (commands, code) and said in done.output


def test_toys_leave_no_result(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    record.save("toy", [{"found": 7}], quick=True)
    assert "7" in capsys.readouterr().out and not list(tmp_path.iterdir())


def test_an_error_of_a_benchmark_is_one_line(monkeypatch, capsys):
    def main() -> None:
        raise ConfigError("no such thing: give another")

    monkeypatch.setattr(sys, "argv", ["bench.toy"])
    with pytest.raises(SystemExit) as left:
        command.carry_out(main)
    assert left.value.code == 2
    assert capsys.readouterr().err == f"{command.called()}: no such thing: give another\n"


def test_cases_take_turns_and_warm_ups_do_not_count():
    given = iter(range(99))
    calls = {name: lambda name=name: (name, next(given)) for name in "ab"}
    found = measure.in_turns(calls, 3, warmups=1)
    for name, values in found.items():
        assert [case for case, _ in values] == [name] * 3
        assert [number // 2 for _, number in values] == [1, 2, 3]


def test_rows_of_times_by_hand():
    times = {"old": Times((2.0, 4.0)), "new": Times((1.0, 1.0))}
    old, new = measure.beside(times, "old", width=8)
    assert (old["width"], old["way"], old["ratio"]) == (8, "old", 1)
    assert new == {
        "width": 8, "way": "new", "n": 2, "median_s": 1, "min_s": 1, "max_s": 1,
        "ratio": 0.375, "ratio_min": 0.25, "ratio_max": 0.5,
    }  # fmt: skip
    assert times["old"].row("ms", each=1e3)["max_ms"] == 4000


def test_a_finished_run_is_read_and_goes_again():
    with runs.finished(small()) as run:
        folder = run.folder.path
        last = run.folder.metrics()[-1]["mean_test_accuracy"]
        assert run.summary["mean_test_accuracy"]["final"] == last
        schema = {name: tensor.shape for name, tensor in run.network.state_dict().items()}
        assert {name: tensor.shape for name, tensor in run.model(0).items()} == schema
    assert not folder.exists()


def test_a_kept_run_is_not_made_again(tmp_path):
    made = []

    def make(case, experiment):
        made.append(case)
        return {"seed": experiment.seed}

    cases = {("a b", seed): small(runtime__out=str(tmp_path), seed=seed) for seed in (1, 2)}
    for given, times in (({}, 2), ({}, 2), ({"x": 1}, 4)):
        found = runs.kept_runs("toy", given, cases, make)
        assert [one["seed"] for one in found.values()] == [1, 2] and len(made) == times
    assert len(runs.codes(found)) == 1
