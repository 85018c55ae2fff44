"""`fedapp sign`: what it prints is what the server and the sites take."""

import shlex
import tomllib

import pytest
from typer.testing import CliRunner

from fedapp.cli import app
from fedapp.core.errors import ConfigError
from fedapp.experiment.code_hash import code_digest
from fedapp.experiment.config import read_run_config, unchecked_settings
from fedapp.experiment.preset_files import preset_path
from fedapp.experiment.signed_runs import read_statement, settings_digest, verify
from fedapp.tools.deploy.certs import make_certs
from fedapp.tools.deploy.sign import signed_run


@pytest.fixture
def key(tmp_path):
    """The key that `fedapp certs` makes for a coordinator."""
    make_certs(tmp_path / "trial", ["fl.example"], ["north"])
    return tmp_path / "trial" / "coordinator" / "coordinator.key"


def signed(key, *texts, identity="", preset="digits_demo"):
    asked = []
    return list(signed_run(preset, texts, key, 7.0, identity, lambda: asked.append(1) or ""))


def test_the_command_that_it_prints_has_the_words_run(key):
    *_, command = signed(key, "runtime.run_name=first", "rounds.num_rounds=3")
    words = shlex.split(command)
    run_config = tomllib.loads(words[-1].replace('" ', '"\n'))
    word, _ = verify(run_config["signed"], [key.with_suffix(".pub").read_text()])
    said = unchecked_settings(*read_run_config(run_config))
    assert said["rounds.num_rounds"] == 3
    assert word.differs("first", code_digest(), settings_digest(said), word.identity) == ""


def test_standard_output_holds_the_command_alone(key):
    words = ["sign", "digits_demo", "runtime.run_name=first", "--key", str(key)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0 and done.stdout.count("\n") == 1
    assert done.stdout.startswith("flwr run . ") and done.stderr.startswith("signed   run first")


def test_each_word_is_another_runs_but_where_one_goes_on(key):
    first, again = (
        read_statement(signed(key, "runtime.run_name=first")[-1].split('signed="')[1][:-2])
        for _ in range(2)
    )
    assert first.identity != again.identity
    token = signed(key, "runtime.run_name=first", identity=first.identity)[-1]
    assert read_statement(token.split('signed="')[1][:-2]).identity == first.identity


def test_what_cannot_be_signed(key, tmp_path):
    with pytest.raises(ConfigError, match=r"needs the run's name, runtime\.run_name"):
        signed(key)
    with pytest.raises(ConfigError, match="identity"):
        signed(key, "runtime.run_name=first", identity="abc")
    with pytest.raises(ConfigError, match="ssh-keygen"):
        signed(tmp_path / "none", "runtime.run_name=first")
    with pytest.raises(ConfigError, match="unknown key"):
        signed(key, "runtime.run_nam=first")
    key.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        signed(key, "runtime.run_name=first")


def test_a_preset_in_the_folder_that_is_sent_is_signed_by_its_name(key, tmp_path, monkeypatch):
    """A program that was installed apart from the folder does not have the preset."""
    (tmp_path / "conf").mkdir()
    file = tmp_path / "conf" / "hospitals.yaml"
    file.write_text(preset_path("digits_demo").read_text())
    monkeypatch.chdir(tmp_path)
    digests = set()
    for name in ("hospitals", "conf/hospitals.yaml"):
        words = shlex.split(signed(key, "runtime.run_name=first", preset=name)[-1])
        run_config = tomllib.loads(words[-1].replace('" ', '"\n'))
        assert run_config["preset"] == "hospitals"
        digests.add(read_statement(run_config["signed"]).settings)
    said = unchecked_settings(str(file), {"runtime.run_name": "first"})
    assert digests == {settings_digest(said)}
    (tmp_path / "elsewhere.yaml").write_text(file.read_text())
    with pytest.raises(ConfigError, match=r"copy it into .*conf, and sign elsewhere"):
        signed(key, "runtime.run_name=first", preset="elsewhere.yaml")
