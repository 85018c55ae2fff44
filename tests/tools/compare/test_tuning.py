"""`fedapp tune`: one budget for all, judged on validation images alone."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from fedapp import cli
from fedapp.experiment.presetfiles import sweeps
from fedapp.ground.errors import ConfigError
from fedapp.tools.compare import runner
from fedapp.tools.compare.cells import build_cells
from fedapp.tools.compare.command import tune
from fedapp.tools.compare.grid import read_grid
from fedapp.tools.compare.overview import tuning_overview
from fedapp.tools.compare.tuning import candidates, judge, tuned, tuning_grid
from tests.tools.compare.tiny import grid, grid_file, stand_in

RATES = {"training.learning_rate": [0.01, 0.1]}
TUNE = {"budget": 2, "seeds": [9], "values": {"fixavg": RATES, "um_pfssl": RATES}}
TWO = {"a": {}, "b": {"split.dirichlet_alpha": 5.0}}


def row(method: str, validation: float | None, test: float = 0.0) -> dict[str, object]:
    return {
        "method": method,
        "selected_val_accuracy": validation,
        "selected_test_accuracy": test,
    }


def test_all_combinations_are_tried_the_last_key_changing_fastest(tmp_path: Path):
    values = {"training.learning_rate": [0.01, 0.1], "method.confidence": [0.95, 0.8]}
    plan = {"budget": 4, "seeds": [9], "values": {"fixavg": values}}
    tried = candidates(grid(tmp_path, methods=["fixavg"], tune=plan))
    assert [c.words for c in tried] == [
        "learning_rate 0.01, confidence 0.95",
        "learning_rate 0.01, confidence 0.8",
        "learning_rate 0.1, confidence 0.95",
        "learning_rate 0.1, confidence 0.8",
    ]
    assert [c.label for c in tried] == ["fixavg.1", "fixavg.2", "fixavg.3", "fixavg.4"]


def test_candidates_run_on_the_settings_and_seeds_that_are_asked_for(tmp_path: Path):
    plan = grid(tmp_path, settings=TWO, tune={**TUNE, "settings": ["b"]}, reference="um_pfssl")
    assert tuned(plan, [])["reference"] == "um_pfssl"
    found = tuning_grid(plan, candidates(plan))
    assert [s.name for s in found.settings] == ["b"]
    assert found.seeds == (9,)
    assert found.methods["um_pfssl.2"] == {
        "method.preset": "um_pfssl",
        "training.learning_rate": 0.1,
    }


def test_mix_is_not_tuned_its_parents_are(tmp_path: Path):
    methods = ["fixavg", "fixprox", "fixbn", "mix"]
    values = dict.fromkeys(methods[:3], RATES)
    plan = grid(tmp_path, methods=methods, tune={**TUNE, "values": values})
    tried = candidates(plan)
    assert {c.method for c in tried} == {"fixavg", "fixprox", "fixbn"}
    results = [row(c.label, 0.5) for c in tried]
    assert tuned(plan, judge(tried, results))["methods"]["mix"] == {}


def test_the_best_on_validation_wins_whatever_its_test_accuracy(tmp_path: Path):
    tried = candidates(grid(tmp_path, tune=TUNE))
    results = [
        *(row("fixavg.1", 0.50, 0.9), row("fixavg.1", 0.52, 0.9)),  # 0.51
        *(row("fixavg.2", 0.40, 0.1), row("fixavg.2", 0.70, 0.1)),  # 0.55
        *(row("um_pfssl.1", 0.6), row("um_pfssl.1", 0.6)),
        *(row("um_pfssl.2", 0.6), row("um_pfssl.2", 0.6)),  # equal: the earlier one
    ]
    judged = judge(tried, results)
    assert [j.chosen for j in judged] == [False, True, True, False]
    assert [j.validation for j in judged] == pytest.approx([0.51, 0.55, 0.6, 0.6])
    assert [j.test for j in judged] == pytest.approx([0.9, 0.1, 0.0, 0.0])
    assert "fixavg    *        55.0  learning_rate 0.1" in tuning_overview(judged)


def test_a_candidate_that_answers_nan_never_wins(tmp_path: Path):
    tried = candidates(grid(tmp_path, methods=["fixavg"], tune=TUNE))
    judged = judge(tried, [row("fixavg.1", None), row("fixavg.2", 0.1)])
    assert [j.chosen for j in judged] == [False, True]


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"budget": 3}, "values: fixavg: 2 candidates: must be the budget, 3"),
        ({"seeds": [0, 9]}, "tune: seeds: 0: is one of the comparison's"),
        ({"settings": ["c"]}, "tune: settings: 'c': is none of the grid's base"),
        ({"values": {"fixavg": RATES}}, "values: um_pfssl: is missing"),
    ],
)
def test_an_unfair_plan_is_refused(tmp_path: Path, changes, line):
    with pytest.raises(ConfigError, match=line):
        candidates(grid(tmp_path, tune={**TUNE, **changes}))


def test_values_that_no_setting_takes_are_refused_before_anything_runs(tmp_path: Path):
    values = {m: {"training.learning_rate": [0.1, -1.0]} for m in ("fixavg", "um_pfssl")}
    path = grid_file(tmp_path, tune={**TUNE, "values": values})
    with pytest.raises(ConfigError, match=r"fixavg\.2: training\.learning_rate = -1\.0: "):
        tune(str(path), {}, out=tmp_path / "out", jobs=1)


@pytest.mark.parametrize("name", [name for name in sweeps() if read_grid(name).tune])
def test_the_plans_that_ship_are_fair_and_build(name: str, tmp_path: Path):
    plan = read_grid(name)
    tried = candidates(plan)
    assert build_cells(tuning_grid(plan, tried), tmp_path)


# --- the command ----------------------------------------------------------------------------------


def test_the_tuned_grid_can_be_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runner, "COMMAND", stand_in(tmp_path / "calls", {}))
    path = grid_file(tmp_path, settings=TWO, tune=TUNE, paper={"table": "I", "dataset": "CIFAR10"})
    out = tmp_path / "out"
    words = ["tune", str(path), "rounds.num_rounds=2", "--jobs", "1", "--out", str(out)]
    found = CliRunner().invoke(cli.app, words)
    assert found.exit_code == 0, found.output
    assert f"fedapp compare {out / 'tiny.yaml'}" in found.output.replace("\n", "")
    ours, theirs = read_grid(str(out / "tiny.yaml")), read_grid(str(path))
    assert ours.settings == theirs.settings
    assert ours.seeds == theirs.seeds
    assert ours.common == {**theirs.common, "rounds.num_rounds": 2}
    assert ours.methods["fixavg"] == {
        "method.preset": "fixavg",
        "training.learning_rate": 0.01,  # all are equal: the first
    }
    facts = json.loads((out / "tuning.json").read_text())
    assert facts["budget"] == 2 and facts["settings"] == ["a", "b"] and facts["seeds"] == [9]
    assert len(facts["candidates"]) == 4
    assert (out / "tiny.yaml").read_text().startswith("# Written by `fedapp tune`")
    assert len((tmp_path / "calls").read_text().split()) == 8


def test_nothing_is_chosen_while_a_candidate_lacks_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path, out = grid_file(tmp_path, tune=TUNE), tmp_path / "out"
    fails = {"um_pfssl.2": "fail"}
    monkeypatch.setattr(runner, "COMMAND", stand_in(tmp_path / "calls", fails))
    assert tune(str(path), {}, out=out, jobs=1) == 1
    assert not (out / "tiny.yaml").exists()
    monkeypatch.setattr(runner, "COMMAND", stand_in(tmp_path / "calls", {}))
    assert tune(str(path), {}, out=out, jobs=1) == 0
    assert yaml.safe_load((out / "tiny.yaml").read_text())["methods"]
