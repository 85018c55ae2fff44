"""What `fedapp tune` tries by default, and as the command line says."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from fedapp import cli
from fedapp.ground.errors import ConfigError
from fedapp.tools.compare import runner
from fedapp.tools.compare.tuning import RATES, budget, candidates, searched, values_of
from tests.tools.compare.tiny import grid, grid_file, stand_in

KEY = "training.learning_rate"
OWN = {"budget": 1, "seeds": [9], "values": {m: {KEY: [0.5]} for m in ("fixavg", "um_pfssl")}}


def test_a_grid_without_a_plan_tries_learning_rates_on_a_seed_of_its_own(tmp_path: Path) -> None:
    plan = searched(grid(tmp_path, seeds=[3, 5]), {})
    assert plan.tune is not None and plan.tune.seeds == [6] and plan.tune.budget == len(RATES)
    tried = candidates(plan)
    assert [c.values[KEY] for c in tried if c.method == "fixavg"] == list(RATES)
    assert [c.values for c in tried[: len(RATES)]] == [c.values for c in tried[len(RATES) :]]


def test_a_grids_own_plan_stays_unless_the_command_line_says_otherwise(tmp_path: Path) -> None:
    own = grid(tmp_path, tune=OWN)
    assert searched(own, {}) is own
    other = searched(own, {KEY: [0.1, 0.2], "training.momentum": [0.0, 0.9]})
    assert other.tune is not None and other.tune.seeds == [9] and other.tune.budget == 4
    assert len(candidates(other)) == 8


def test_mix_has_no_candidates(tmp_path: Path) -> None:
    plan = searched(grid(tmp_path, methods=["fixavg", "fixprox", "fixbn", "mix"]), {KEY: [0.1]})
    assert {c.method for c in candidates(plan)} == {"fixavg", "fixprox", "fixbn"}
    assert budget(plan, 3, 30).startswith("1 candidates of each of 3 methods, 1 settings, 1 seeds")


def test_values_of_a_command_line() -> None:
    texts = ["training.learning_rate=0.01, 0.1", "method.metric=mi"]
    assert values_of(texts) == {KEY: [0.01, 0.1], "method.metric": ["mi"]}
    assert values_of([]) == {}


@pytest.mark.parametrize("text", ["0.1,0.2", "=0.1", f"{KEY}=", f"{KEY}=,", f"{KEY}=0.1,0.1"])
def test_values_of_another_form_are_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match="--candidates") as error:
        values_of([text])
    assert "\n" not in str(error.value)


def test_a_key_that_stands_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="stands twice"):
        values_of([f"{KEY}=0.1", f"{KEY}=0.2"])


def test_a_key_that_is_none_or_is_the_cells_own_is_named(tmp_path: Path) -> None:
    for key, says in (("training.lr", f"did you mean '{KEY}'"), ("seed", "is varied by the cells")):
        found = CliRunner().invoke(
            cli.app, ["tune", str(grid_file(tmp_path)), "--candidates", f"{key}=1,2"]
        )
        assert isinstance(found.exception, ConfigError) and says in str(found.exception)


def test_the_budget_is_said_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "COMMAND", stand_in(tmp_path / "calls", {}))
    words = ["--candidates", f"{KEY}=0.02,0.04", "--jobs", "1", "--out", str(tmp_path / "out")]
    found = CliRunner().invoke(cli.app, ["tune", str(grid_file(tmp_path)), *words])
    assert found.exit_code == 0, found.output
    said = "2 candidates of each of 2 methods, 1 settings, 1 seeds: 4 runs, 12 rounds in all"
    assert found.output.startswith(said)
    written = yaml.safe_load((tmp_path / "out" / "tiny.yaml").read_text())
    assert written["methods"]["fixavg"][KEY] == 0.02
