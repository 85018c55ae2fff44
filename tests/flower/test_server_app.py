"""The ServerApp's own part: how it fails, and the command it advises."""

import json
import logging
import shutil
from types import SimpleNamespace

import pytest
from flwr.app import Context, RecordDict

from fedapp.core.errors import ConfigError, RunError
from fedapp.experiment.code_hash import code_digest
from fedapp.experiment.config import AS_PRESET, unchecked_settings
from fedapp.experiment.run_folder import identity_of
from fedapp.experiment.signed_runs import RunStatement, settings_digest, sign
from fedapp.site.record import Record
from server_app.app import app
from tests.experiment.test_signed_runs import KEY, line
from tests.flower.grids import MemoryGrid, node, preset, sites
from tests.small import small


@pytest.fixture
def flower_log(monkeypatch, caplog):
    """Flower's logger, with nothing of this test left on it afterwards."""
    logger = logging.getLogger("flwr")
    monkeypatch.setattr(logger, "filters", [])
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    # The first site of a process gives the core the handlers that Flower has then, for good.
    monkeypatch.setattr(logging.getLogger("fedapp"), "handlers", [])
    monkeypatch.setattr(logger, "propagate", False)
    return logger


def context(**run_config):
    return Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=run_config)


def test_a_whole_run_prints_the_result_and_where_it_lies(tmp_path, capsys, flower_log):
    experiment = small(runtime__out=str(tmp_path), runtime__run_name="mine", rounds__num_rounds=1)
    config = {"preset": preset(experiment, tmp_path), "seed": AS_PRESET}
    app(MemoryGrid(sites(config, 5)), context(**config))
    out = capsys.readouterr().out
    assert f"Files in {tmp_path / 'mine'}" in out
    assert (tmp_path / "mine/summary.json").is_file()


def test_an_error_for_people_leaves_as_an_exception_but_is_logged_as_one_line(flower_log, caplog):
    """Flower takes a SystemExit in a simulation's thread for success."""
    with pytest.raises(ConfigError, match=r"confidence = 9\.0") as caught:
        app(MemoryGrid({}), context(preset="digits_demo", set="method.confidence=9.0"))
    flower_log.error("%s raised an exception", "Simulation", exc_info=caught.value)
    record, how = caplog.records
    assert record.getMessage() == str(caught.value) and record.exc_info is None
    assert "`flwr list --run-id 1 --format json` says finished:failed" in how.getMessage()
    flower_log.error("%s raised an exception", "Simulation", exc_info=ValueError("a bug"))
    assert caplog.records[-1].exc_info


@pytest.fixture
def signed(tmp_path):
    """A run of five sites that do signed runs only; .start(token, ...) starts it."""
    experiment = small(runtime__out=str(tmp_path), runtime__run_name="mine", rounds__num_rounds=1)
    file = preset(experiment, tmp_path)
    own = [tmp_path / f"own-{k}" for k in range(5)]
    for folder in own:
        folder.mkdir()
        terms = {"started_by": [line(KEY)], "folders": [str(tmp_path)]}
        (folder / "site.yaml").write_text(json.dumps(terms))
    settings = settings_digest(unchecked_settings(file, {}))
    word = RunStatement("mine", code_digest(), settings, "e" * 64, 2**39)

    def start(token, said=""):
        config = {"preset": file, "set": said, "signed": token}
        nodes = {
            100 + k: node(config, **{"partition-id": k, "site-folder": str(own[k])})
            for k in range(5)
        }
        app(MemoryGrid(nodes), context(**config))

    return SimpleNamespace(start=start, word=word, own=own, run=tmp_path / "mine")


def test_a_signed_run_has_the_identity_that_was_signed_and_is_not_done_twice(signed, flower_log):
    token = sign(signed.word, KEY)
    signed.start(token)
    assert identity_of(signed.run) == signed.word.identity
    shutil.rmtree(signed.run)
    with pytest.raises(RunError, match=r"round 0 is over: round 1 of this run was done here"):
        signed.start(token)
    for folder in signed.own:
        lines = list(Record(folder).lines())
        assert [one["round"] for one in lines if one["event"] == "sent"] == [0, 1]
        assert lines[-1]["term"] == "started_by"


def test_what_was_signed_for_another_run_is_said_before_a_site_is_asked(signed, flower_log):
    with pytest.raises(ConfigError, match=r"its settings are not .* have it signed again"):
        signed.start(sign(signed.word, KEY), "seed=5")
    with pytest.raises(ConfigError, match="no signed word"):
        signed.start("no token")
    assert not any(Record(folder).path.exists() for folder in signed.own)


def test_a_run_that_nobody_signed_is_refused_by_every_such_site(signed, flower_log):
    with pytest.raises(RunError, match=r"\(started_by\): nobody has signed it"):
        signed.start("")
