"""`fedapp compare --tune`: one budget for all, judged on validation images alone."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from fedapp import cli
from fedapp.core.errors import ConfigError
from fedapp.experiment.preset_files import sweeps
from fedapp.tools.compare import execute, tuning
from fedapp.tools.compare.cells import build_cells, runs_of
from fedapp.tools.compare.compare import tune
from fedapp.tools.compare.grid import read_grid
from fedapp.tools.compare.tuning import (
    candidates,
    judge,
    searched,
    tuned,
    tuning_grid,
    tuning_overview,
    values_of,
)
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


def test_each_setting_may_have_values_of_its_own(tmp_path: Path):
    """um_pfssl has a value in b already, which what is tried takes the place of."""
    own = {"um_pfssl": {"training.learning_rate": 0.5, "training.batch_size": 4}}
    settings = {"a": {}, "b": {**TWO["b"], "methods": own}}
    plan = grid(tmp_path, settings=settings, tune={**TUNE, "each_setting": True})
    tried = candidates(plan)
    runs = {(c.setting, c.method): c for c in build_cells(tuning_grid(plan, tried), tmp_path)}
    of_b = runs["b", "um_pfssl.2"].experiment.training
    assert (of_b.learning_rate, of_b.batch_size) == (0.1, 4)
    assert runs["b", "um_pfssl.2"].folder == tmp_path / "cells" / "b" / "um_pfssl.2" / "seed-9"
    best = {("a", "fixavg"): 2, ("a", "um_pfssl"): 1, ("b", "fixavg"): 1, ("b", "um_pfssl"): 2}
    results = [
        {"setting": setting, **row(c.label, 0.9 if c.label.endswith(str(number)) else 0.1)}
        for (setting, method), number in best.items()
        for c in tried
        if c.method == method
    ]
    judged = judge(tried, results, each_setting=True)
    assert "b / um_pfssl  *        90.0  learning_rate 0.1" in tuning_overview(judged)
    found = tuned(plan, judged)
    assert found["methods"]["um_pfssl"] == {"method.preset": "um_pfssl"}  # it has no common value
    rates = {
        (name, m): values["training.learning_rate"]
        for name, setting in found["settings"].items()
        for m, values in setting["methods"].items()
    }
    assert rates == {key: {1: 0.01, 2: 0.1}[number] for key, number in best.items()}
    assert found["settings"]["b"]["methods"]["um_pfssl"]["training.batch_size"] == 4


def test_an_average_is_tuned_by_its_own_validation_without_a_run_of_its_own(tmp_path: Path):
    methods = {"fedavg_ft": {}, "fedavg": {"method.preset": "fedavg_ft", "answer": "common"}}
    values = dict.fromkeys(methods, RATES)
    plan = grid(tmp_path, methods=methods, tune={**TUNE, "values": values})
    tried = candidates(plan)
    every = build_cells(tuning_grid(plan, tried), tmp_path)
    assert (len(every), len(runs_of(every))) == (4, 2)
    results = [row(c.label, 0.9 if c.label in {"fedavg_ft.1", "fedavg.2"} else 0.1) for c in tried]
    found = tuned(plan, judge(tried, results))["methods"]
    assert found["fedavg_ft"]["training.learning_rate"] == 0.01
    assert found["fedavg"] == {**methods["fedavg"], "training.learning_rate": 0.1}


def test_a_method_with_nothing_to_tune_stays_as_it_is(tmp_path: Path):
    plan = grid(tmp_path, tune={**TUNE, "values": {"fixavg": RATES, "um_pfssl": {}}})
    tried = candidates(plan)
    assert {c.method for c in tried} == {"fixavg"}
    judged = judge(tried, [row(c.label, 0.5) for c in tried])
    assert tuned(plan, judged)["methods"]["um_pfssl"] == {"method.preset": "um_pfssl"}


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
    monkeypatch.setattr(execute, "COMMAND", stand_in(tmp_path / "calls", {}))
    path = grid_file(tmp_path, settings=TWO, tune=TUNE, paper={"table": "I", "dataset": "CIFAR10"})
    out = tmp_path / "out"
    words = ["compare", str(path), "--tune", "rounds.num_rounds=2", "--jobs=1", "--out"]
    found = CliRunner().invoke(cli.app, [*words, str(out)])
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
    assert (out / "tiny.yaml").read_text().startswith("# Written by `fedapp compare --tune`")
    assert len((tmp_path / "calls").read_text().split()) == 8


def test_one_setting_of_a_grid_can_be_tuned_and_the_whole_goes_on_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(execute, "COMMAND", stand_in(tmp_path / "calls", {}))
    plan = {**TUNE, "settings": ["a"], "each_setting": True}
    path, out = grid_file(tmp_path, settings=TWO, tune=plan, judged="last"), tmp_path / "out"
    words = ["compare", str(path), "--tune", "--jobs", "1", "--out", str(out)]
    found = CliRunner().invoke(cli.app, [*words, "--setting", "b"])
    assert found.exit_code == 0, found.output
    part = read_grid(str(out / "tiny.yaml"))
    assert ([s.name for s in part.settings], part.judged) == (["b"], "last")
    assert part.settings[0].methods["um_pfssl"] == {"training.learning_rate": 0.01}
    facts = json.loads((out / "tuning.json").read_text())
    assert {one["setting"] for one in facts["candidates"]} == {"b"}
    assert CliRunner().invoke(cli.app, [*words, "--setting", "a", "--setting", "b"]).exit_code == 0
    assert len((tmp_path / "calls").read_text().split()) == 8
    assert len(read_grid(str(out / "tiny.yaml")).settings) == 2


def test_nothing_is_chosen_while_a_candidate_lacks_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path, out = grid_file(tmp_path, tune=TUNE), tmp_path / "out"
    fails = {"um_pfssl.2": "fail"}
    monkeypatch.setattr(execute, "COMMAND", stand_in(tmp_path / "calls", fails))
    assert tune(str(path), {}, out=out, jobs=1) == 1
    assert not (out / "tiny.yaml").exists()
    monkeypatch.setattr(execute, "COMMAND", stand_in(tmp_path / "calls", {}))
    assert tune(str(path), {}, out=out, jobs=1) == 0
    assert yaml.safe_load((out / "tiny.yaml").read_text())["methods"]


# --- what is tried by default, and as the command line says ---------------------------------------


KEY = "training.learning_rate"
OWN = {"budget": 1, "seeds": [9], "values": {m: {KEY: [0.5]} for m in ("fixavg", "um_pfssl")}}


def test_a_grid_without_a_plan_tries_learning_rates_on_a_seed_of_its_own(tmp_path: Path) -> None:
    plan = searched(grid(tmp_path, seeds=[3, 5]), {})
    assert (
        plan.tune is not None and plan.tune.seeds == [6] and plan.tune.budget == len(tuning.RATES)
    )
    tried = candidates(plan)
    assert [c.values[KEY] for c in tried if c.method == "fixavg"] == list(tuning.RATES)
    assert [c.values for c in tried[: len(tuning.RATES)]] == [
        c.values for c in tried[len(tuning.RATES) :]
    ]


def test_a_grids_own_plan_stays_unless_the_command_line_says_otherwise(tmp_path: Path) -> None:
    own = grid(tmp_path, tune=OWN)
    assert searched(own, {}) is own
    other = searched(own, {KEY: [0.1, 0.2], "training.momentum": [0.0, 0.9]})
    assert other.tune is not None and other.tune.seeds == [9] and other.tune.budget == 4
    assert len(candidates(other)) == 8


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
            cli.app, ["compare", str(grid_file(tmp_path)), "--tune", "--candidates", f"{key}=1,2"]
        )
        assert isinstance(found.exception, ConfigError) and says in str(found.exception)


def test_the_budget_is_said_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execute, "COMMAND", stand_in(tmp_path / "calls", {}))
    words = ["--candidates", f"{KEY}=0.02,0.04", "--jobs", "1", "--out", str(tmp_path / "out")]
    found = CliRunner().invoke(cli.app, ["compare", str(grid_file(tmp_path)), "--tune", *words])
    assert found.exit_code == 0, found.output
    said = "2 candidates of each of 2 methods, 1 setting, 1 seed: 4 runs, 12 rounds in all"
    assert found.output.startswith(said)
    written = yaml.safe_load((tmp_path / "out" / "tiny.yaml").read_text())
    assert written["methods"]["fixavg"][KEY] == 0.02
