"""A run in this process that is told to end says how to go on, and does."""

import os
import signal

import pytest
from typer.testing import CliRunner

from fedapp.cli import app
from fedapp.experiment.config import load_experiment
from fedapp.server.engine import Engine
from fedapp.simulation.loopback import run_loopback
from fedapp.site.federation import LoadedSites
from tests.flower.results import rows
from tests.golden.numbers import SHRUNK


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_says_how_to_go_on(tmp_path, monkeypatch, number):
    plain, before = Engine._round, signal.getsignal(number)

    def stopped(engine, which, state):
        if which == 2:
            os.kill(os.getpid(), number)
        return plain(engine, which, state)

    settings = {**SHRUNK, "method.preset": "local_only", "runtime.out": str(tmp_path)}
    words = ["run", "digits_demo", *(f"{key}={value}" for key, value in settings.items())]
    with monkeypatch.context() as once:
        once.setattr(Engine, "_round", stopped)
        result = CliRunner().invoke(app, [*words, "runtime.run_name=a"])
    assert result.exit_code != 0
    said = "interrupted; continue with the same settings and runtime.resume=true runtime.run_name=a"
    assert said in result.output
    assert signal.getsignal(number) == before
    assert (
        CliRunner().invoke(app, [*words, "runtime.run_name=a", "runtime.resume=true"]).exit_code
        == 0
    )
    assert [row["round"] for row in rows(tmp_path / "a")] == [0, 1, 2, 3]


@pytest.mark.parametrize("what", ["the start", "the data"])
def test_what_fails_before_a_round_leaves_no_folder(tmp_path, monkeypatch, what):
    """Whatever the error is: the same command can be given again once its cause is mended."""

    def fails(*_):
        raise ArithmeticError("no convergence")

    of, name = (Engine, "_round") if what == "the start" else (LoadedSites, "copies")
    monkeypatch.setattr(of, name, fails)
    settings = {**SHRUNK, "method.preset": "local_only", "runtime.out": str(tmp_path)}
    with pytest.raises(ArithmeticError):
        run_loopback(load_experiment("digits_demo", settings))
    assert not list(tmp_path.iterdir())
