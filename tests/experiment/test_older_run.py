"""A run that version 1.0.0 made opens, goes on and is reported; its config.yaml has what is gone.

Its folder, `run_of_1_0_0`, is of 2 sites, FedAvg, digits and 1 round, as the tag wrote it:
    fedapp run digits_demo method.preset=fedavg model.name=mlp model.hidden=8 data.subset=120 \
        split.num_clients=2 split.dirichlet_alpha=5.0 rounds.num_rounds=1 rounds.sample_rate=1.0 \
        training.local_epochs=1 training.warmup_epochs=1 runtime.run_name=one
"""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from fedapp.core.devices import pick_device
from fedapp.core.errors import ConfigError, RunError
from fedapp.core.withdrawn import SETTINGS
from fedapp.experiment.config import experiment_digest, load_experiment
from fedapp.experiment.resume import check_run
from fedapp.experiment.run_folder import RunFolder
from fedapp.models.model import load_model
from fedapp.reports.report import write_reports
from fedapp.server.finished_run import finished_run
from fedapp.simulation.loopback import run_loopback
from fedapp.tools.watch import run_state

OLD = Path(__file__).with_name("run_of_1_0_0")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD, tmp_path / "runs" / "one"))


def resumed(run: Path, **settings):
    over = {"runtime.out": str(run.parent), "runtime.run_name": run.name, "runtime.resume": True}
    return load_experiment(str(run / "config.yaml"), {**over, **settings})


def test_its_settings_name_everything_that_was_taken_out():
    plain = yaml.safe_load((OLD / "config.yaml").read_text())
    for key, setting in SETTINGS.items():
        group, _, name = key.partition(".")
        if group != "method":
            assert plain[group][name] == setting.default, key


def test_what_was_taken_out_moves_no_digest():
    """That of a method without new settings, as it was while privacy.noise was a setting."""
    assert experiment_digest(load_experiment("digits_demo", {"method.preset": "fedavg"})) == (
        "dc1476a524bff0d92deaef05f451f68ee38959f0cc76fbad1e6e93835d23dcca"
    )


def test_it_opens_and_its_models_too(run: Path):
    assert finished_run(run).state.round == 1
    assert run_state(run).ended and len(write_reports([str(run)])) == 1
    for site in "01":
        model, description = load_model(run / "models" / site, pick_device("cpu"))
        assert description.origin.run == "one" and model is not None


def test_it_goes_on_to_more_rounds(run: Path):
    check_run(resumed(run))
    run_loopback(resumed(run, **{"rounds.num_rounds": 2}))
    assert [row["round"] for row in RunFolder(run).metrics()] == [0, 1, 2]


def test_with_other_settings_it_does_not(run: Path):
    with pytest.raises(RunError, match=r"a run with other settings \(training\.learning_rate"):
        check_run(resumed(run, **{"training.learning_rate": 0.5}))


def test_with_epsilon_it_does_not(run: Path):
    plain = yaml.safe_load((run / "config.yaml").read_text())
    plain["privacy"] |= {"epsilon": 4.0}
    plain["method"] = {"name": "one_round"}
    (run / "config.yaml").write_text(yaml.safe_dump(plain))
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**facts, "experiment": "0" * 64}))
    with pytest.raises(RunError, match="by another version of this software"):
        check_run(resumed(run))


@pytest.mark.parametrize("key", SETTINGS)
def test_what_was_taken_out_is_refused_by_name_where_it_says_anything(run: Path, key: str):
    idle, instead = SETTINGS[key].default, SETTINGS[key].instead
    for value in (idle, "other"):
        with pytest.raises(ConfigError) as told:
            load_experiment("digits_demo", {key: value})
        assert str(told.value) == f"override: {key} = {value!r}: was taken out in 2.0; {instead}"
    plain = yaml.safe_load((run / "config.yaml").read_text())
    group, _, name = key.partition(".")
    plain[group][name] = "other"
    (run / "config.yaml").write_text(yaml.safe_dump(plain))
    with pytest.raises(ConfigError, match=r"was taken out in 2\.0"):
        finished_run(run)
