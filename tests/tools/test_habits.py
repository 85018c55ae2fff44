"""What people type by habit means what they expect, and options belong to the right command."""

import re
import subprocess
import sys
from dataclasses import replace

import pytest
from torch import nn
from typer.testing import CliRunner

import fedapp
from fedapp import cli
from fedapp.core.errors import ConfigError
from fedapp.data.split.manifest import Manifest
from fedapp.experiment.config import load_experiment
from fedapp.experiment.preset_files import CONF
from fedapp.tools import demo
from fedapp.tools.check import server
from fedapp.tools.deploy.certs import make_certs
from tests.own import three_sites


def invoked(*words):
    return CliRunner().invoke(cli.app, list(words))


def test_a_seed_as_an_option_is_the_setting(monkeypatch):
    from fedapp.simulation import loopback

    asked = []
    monkeypatch.setattr(
        loopback, "run_loopback", lambda experiment, *_: asked.append(experiment) or ({}, None)
    )
    assert invoked("run", "digits_demo", "--seed", "3", "--json").exit_code == 0
    assert invoked("run", "digits_demo", "seed=3", "--json").exit_code == 0
    assert asked[0] == asked[1] == load_experiment("digits_demo", {"seed": 3})
    twice = invoked("run", "digits_demo", "seed=3", "--seed", "4")
    assert isinstance(twice.exception, ConfigError) and "given twice" in str(twice.exception)


def test_the_demo_takes_a_seed(monkeypatch):
    asked = {}
    monkeypatch.setattr(demo, "demo", lambda out, **over: asked.update(over) or [])
    assert invoked("demo", "--seed", "3").exit_code == 0 and asked == {"seed": 3, "flower": False}


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


def test_a_presets_settings_are_shown_as_a_preset(tmp_path):
    shown = invoked("presets", "digits_demo", "seed=3")
    (tmp_path / "mine.yaml").write_text(shown.stdout)
    assert load_experiment(str(tmp_path / "mine.yaml")) == load_experiment(
        "digits_demo", {"seed": 3}
    )
    listed = invoked("presets").stdout
    assert "digits_demo " in listed and "method.preset=fedavg " in listed


@pytest.mark.parametrize("page", ["DEPLOY.md", "OWN_DATA.md", "TUTORIAL.md"])
def test_the_pages_way_to_a_preset_of_ones_own_needs_no_clone(tmp_path, page):
    text = (CONF.parent / "docs" / page).read_text()
    [command] = set(re.findall(r"fedapp presets own_data --copy > \S+\.yaml", text))
    program = command.replace("fedapp", f"{sys.executable} -m fedapp", 1)
    subprocess.run(["bash", "-e", "-c", program], cwd=tmp_path, check=True)
    mine = tmp_path / command.split()[-1]
    assert mine.read_bytes() == (CONF / "own_data.yaml").read_bytes()
    assert replace(load_experiment(str(mine)), name="own_data") == load_experiment("own_data")


def test_a_presets_split_is_saved(tmp_path):
    file = tmp_path / "split.safetensors"
    said = invoked("presets", "digits_demo", "split.num_clients=4", "--manifest", str(file)).stdout
    assert said.startswith(f"{file}: 1,797 images, 4 sites, digest {Manifest.load(file).digest()}")


def test_members_are_printed_without_a_server(tmp_path):
    make_certs(tmp_path / "keys", [], ["a", "b"])
    folder = tmp_path / "keys/server/supernodes"
    of_the_folder = invoked("sites", "--members", str(folder)).stdout
    files = [f"--members={folder / name}.pub" for name in "ab"]
    assert re.fullmatch(r'privacy\.members="a=[0-9a-f]{64}, b=[0-9a-f]{64}"\n', of_the_folder)
    assert invoked("sites", *files).stdout == of_the_folder


@pytest.mark.parametrize("in_the_way", [0, 1])
def test_data_and_server_are_checked_in_one_go(tmp_path, monkeypatch, in_the_way):
    asked = []
    monkeypatch.setattr(server, "show", lambda *given: asked.append(given[:3]) or in_the_way)
    data, words = three_sites(tmp_path) / "west", ["--server", "a:1", "--keys", "k"]
    both = invoked("check", str(data), *words)
    assert both.exit_code == in_the_way and "this site can join" in both.stdout
    assert invoked("check", *words, "--site-folder", "own").exit_code == in_the_way
    assert [str(folder) for _, _, folder in asked] == ["k", "own"]


@pytest.mark.parametrize(("words", "said"), [
    (["check"], "needs DATA, or --server host:port and --keys FOLDER"),
    (["check", "--server", "a:1"], "needs DATA, or --server host:port and --keys FOLDER"),
    (["check", "--keys", "k"], "--keys: needs --server host:port"),
    (["presets", "--manifest", "f"], "needs the preset's name"),
    (["presets", "--copy"], "needs the preset's name"),
    (["presets", "own_data", "seed=1", "--copy"], "takes the preset's name alone"),
    (["site", "--check"], "needs a run's name or folder"),
    (["site", "mine", "--check", "--page", "p"], "and no --page"),
    (["compare", "digits_demo", "--candidates", "seed=1"], "add --tune"),
    *((["compare", "digits_demo", "--tune", *more], "leave out --seeds, --driver") for more in (
        ["--seeds", "1"], ["--driver", "flower"], ["--keep-models"], ["--by", "f1"])),
])  # fmt: skip
def test_an_option_without_its_other_half_is_refused(words, said):
    refused = invoked(*words).exception
    assert isinstance(refused, ConfigError) and said in str(refused)
