"""What people type by habit means what they expect."""

import re

import pytest
from torch import nn
from typer.testing import CliRunner

import fedapp
from fedapp import cli
from fedapp.core.errors import ConfigError
from fedapp.experiment.config import load_experiment
from fedapp.tools.demo import demo


def invoked(*words):
    return CliRunner().invoke(cli.app, list(words))


def test_a_seed_as_an_option_is_the_setting(monkeypatch):
    from fedapp.simulation import loopback

    asked = []
    monkeypatch.setattr(
        loopback, "run_loopback", lambda experiment, ending: asked.append(experiment) or ({}, None)
    )
    assert invoked("run", "digits_demo", "--seed", "3", "--json").exit_code == 0
    assert invoked("run", "digits_demo", "seed=3", "--json").exit_code == 0
    assert asked[0] == asked[1] == load_experiment("digits_demo", {"seed": 3})
    twice = invoked("run", "digits_demo", "seed=3", "--seed", "4")
    assert isinstance(twice.exception, ConfigError) and "given twice" in str(twice.exception)


def test_the_demo_takes_a_seed(monkeypatch):
    asked = {}
    monkeypatch.setattr(demo, "demo", lambda out, **over: asked.update(over) or [])
    assert invoked("demo", "--seed", "3").exit_code == 0 and asked == {"seed": 3}


@pytest.mark.parametrize("seeds", [("0", "1"), ("0,1",), ("0 1",), ("0,", "1")])
def test_seeds_may_have_spaces_between(monkeypatch, seeds):
    from fedapp.tools.compare import compare

    asked = {}

    def noted(grid, overrides, **more):
        asked.update(more, grid=grid, overrides=overrides)
        return 0

    monkeypatch.setattr(compare, "compare", noted)
    words = ["compare", "digits_demo", "--seeds", *seeds, "rounds.num_rounds=1"]
    assert invoked(*words).exit_code == 0
    assert asked["seeds"] == [0, 1] and asked["overrides"] == {"rounds.num_rounds": 1}
    assert "must be key=value" in str(invoked("compare", "digits_demo", "1").exception)


def test_a_network_in_place_of_the_function_that_makes_it_is_named_briefly():
    """`network=resnet18()` was answered with 4,841 characters."""
    network = nn.Sequential(*(nn.Linear(3, 3) for _ in range(99)))
    with pytest.raises(ConfigError, match=r"Sequential.*give the function that makes it") as error:
        fedapp.run("digits_demo", network=network)
    assert len(str(error.value)) < 250


def test_a_site_folder_that_is_not_there_is_named(tmp_path):
    gone = tmp_path / "gone"
    result = invoked("audit", "--site-folder", str(gone))
    said = str(result.exception)
    assert re.search(rf"--site-folder {gone}: there is no such folder: name the one", said)
