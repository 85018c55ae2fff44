"""The ServerApp's own part: how it fails, and the command it advises."""

import logging
import shlex

import pytest
from flwr.app import Context, RecordDict
from flwr.common.config import parse_config_args

from fedapp.ground.errors import ConfigError
from server_app.app import _command, app
from tests.flower.grids import MemoryGrid, preset, sites
from tests.small import small


@pytest.fixture
def flower_log(monkeypatch, caplog):
    """Flower's logger, with nothing of this test left on it afterwards."""
    logger = logging.getLogger("flwr")
    monkeypatch.setattr(logger, "filters", [])
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    monkeypatch.setattr(logger, "propagate", False)
    return logger


def context(**run_config):
    return Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=run_config)


def test_a_whole_run_prints_the_result_and_where_it_lies(tmp_path, capsys, flower_log):
    experiment = small(runtime__out=str(tmp_path), runtime__run_name="mine", rounds__num_rounds=1)
    config = {"preset": preset(experiment, tmp_path), "seed": ""}
    app(MemoryGrid(sites(config, 5)), context(**config))
    out = capsys.readouterr().out
    assert f"Files in {tmp_path / 'mine'}" in out
    assert (tmp_path / "mine/summary.json").is_file()


def test_an_error_for_people_leaves_as_an_exception_but_is_logged_as_one_line(flower_log, caplog):
    """Flower takes a SystemExit in a simulation's thread for success."""
    with pytest.raises(ConfigError, match=r"confidence = 9\.0") as caught:
        app(MemoryGrid({}), context(preset="digits_demo", set="method.confidence=9.0"))
    flower_log.error("%s raised an exception", "Simulation", exc_info=caught.value)
    [record] = caplog.records
    assert record.getMessage() == str(caught.value) and record.exc_info is None
    flower_log.error("%s raised an exception", "Simulation", exc_info=ValueError("a bug"))
    assert caplog.records[-1].exc_info


def test_the_advised_command_carries_every_setting_that_was_given():
    given = {
        "preset": "/data/my preset.yaml",
        "set": 'seed=3 data.download=false training.learning_rate=1e-05 data.root="/o\'hara"',
    }
    command = shlex.split(_command(6, given))
    assert command[:4] == ["flwr", "run", ".", "--stream"]
    assert command[4:6] == ["--federation-config", "num-supernodes=6"]
    assert command[6] == "--run-config"
    assert parse_config_args([command[7]]) == given
