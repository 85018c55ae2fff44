"""The extract for Flower's baselines, `examples/baseline`: two apps that import the package."""

import importlib
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_files
from flwr.cli.utils import collect_files
from flwr.common.config import flatten_dict, fuse_dicts, parse_config_args
from packaging.requirements import Requirement

from fedapp.core.errors import ConfigError
from fedapp.experiment.config import load_experiment, load_run_config
from fedapp.methods.um_pfssl.method import UmPfssl

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples/baseline/um_pfssl"
PROJECT = tomllib.loads((FOLDER / "pyproject.toml").read_text())
APP = PROJECT["tool"]["flwr"]["app"]
FROM = "from fedapp.simulation import flower_local"


@pytest.fixture
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "um_pfssl"]:
        del sys.modules[name]


def test_its_apps_are_those_of_the_package(importable):
    for side, word in APP["components"].items():
        module, _, name = word.partition(":")
        theirs = importlib.import_module(f"{side.removesuffix('app')}_app.app")
        assert getattr(importlib.import_module(module), name) is theirs.app


def test_from_a_wheel_the_apps_are_found_in_the_package(importable, monkeypatch, tmp_path):
    (tmp_path / "fedapp/app").mkdir(parents=True)
    fake = type(sys)("fedapp")
    fake.__file__ = str(tmp_path / "fedapp/__init__.py")
    monkeypatch.setitem(sys.modules, "fedapp", fake)
    monkeypatch.setattr(sys, "path", [*sys.path])
    importlib.import_module("um_pfssl")
    assert sys.path[-1] == str(tmp_path / "fedapp/app")


def test_its_settings_load_and_are_the_methods():
    config = flatten_dict(APP["config"])
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    ours = flatten_dict(ours)
    assert config.keys() == ours.keys()
    changed = {key: said for key, said in config.items() if said != ours.get(key)}
    assert changed == {"method.preset": "um_pfssl", "preset": "digits_demo"}


@pytest.mark.parametrize(
    "line",
    ["seed=1", "rounds.num_rounds=1", "set='rounds.num_rounds=1'", "preset='fashion_mnist'",
     "set='method.preset=um_pfssl rounds.num_rounds=30 seed=1'"],
)  # fmt: skip
def test_whatever_is_overridden_it_runs_um_pfssl(line):
    config = flatten_dict(APP["config"])
    experiment = load_run_config(fuse_dicts(config, parse_config_args([line])))
    own = load_experiment(config["preset"], {"method.preset": "um_pfssl"})
    assert type(experiment.method) is UmPfssl and experiment.method == own.method


def test_another_method_is_chosen_by_its_key_alone():
    config = flatten_dict(APP["config"])
    for line in ("set='method.preset=recommended'", "method.name='fedavg'"):
        with pytest.raises(ConfigError, match="keep one of the two"):
            load_run_config(fuse_dicts(config, parse_config_args([line])))
    for name in ("um_pfssl_mi_labels", "fedavg"):
        line = f"method.preset='{name}'"
        chosen = load_run_config(fuse_dicts(config, parse_config_args([line])))
        assert chosen == load_experiment(config["preset"], {"method.preset": name})


def test_the_bundle_is_small_and_needs_the_package_alone():
    bundle, _ = build_fab_from_files(collect_files(FOLDER))
    names = set(zipfile.ZipFile(BytesIO(bundle)).namelist()) - {".info/CONTENT"}
    code = {f"um_pfssl/{name}.py" for name in ("__init__", "client_app", "server_app")}
    assert names == code | {"README.md", "LICENSE", "pyproject.toml"}
    assert sum(len((FOLDER / name).read_text().splitlines()) for name in code) < 40
    [needed] = map(Requirement, PROJECT["project"]["dependencies"])
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    # pip and uv count a development version that is installed.
    assert needed.name == ours["name"]
    assert needed.specifier.contains(ours["version"], prereleases=True)
    assert (FOLDER / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.slow
def test_flower_runs_it(tmp_path):
    app = tmp_path / "app"
    shutil.copytree(FOLDER, app, ignore=shutil.ignore_patterns("__pycache__", ".flwr"))
    small = ["rounds.num_rounds=1", "data.image_size=0", "split.num_clients=3", "model.width=2"]
    chosen = ["method.preset=um_pfssl", f"runtime.out={tmp_path / 'runs'}"]
    started = f"flower_local.run(Path({str(app)!r}), 'digits_demo', {[*small, *chosen]})"
    code = f"import sys; from pathlib import Path; {FROM}; sys.exit({started})"
    env = os.environ | {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, text=True,
                          capture_output=True)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.glob("runs/*/summary.json"))
