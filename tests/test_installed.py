"""The wheel in an environment of its own, outside the checkout, where Flower cannot be imported."""

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from fedapp.tools.node.app_bundle import read_app

ROOT = Path(__file__).parents[1]
TINY = ["rounds.num_rounds=1", "training.local_steps=2", "data.image_size=0"]
ABSENT = ("flwr", "ray", "cryptography")
"""What one process and Python do not need, though `pip install` brings it."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel; hatchling comes from the package index."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "-w", folder, ROOT]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode and "hatchling" in done.stderr:
        pytest.skip("no package index here to build with")
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Install it beside what this environment has, which spares gigabytes, but for `ABSENT`."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False)
    packages = next(home.glob("lib/python*/site-packages"))
    python = home / "bin" / "python"
    target = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--quiet"]
    subprocess.run([*target, wheel], check=True)
    (packages / "others.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    for name in ABSENT:
        (packages / f"{name}.py").write_text(f"raise ModuleNotFoundError(name={name!r})\n")
    return home / "bin"


@pytest.fixture
def fedapp(installed, tmp_path):
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    env |= {"FEDAPP_OUT": str(tmp_path / "runs")}

    def call(*words):
        command = [installed / words[0], *words[1:]]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)

    return call


def test_the_wheel_says_which_extras_there_are(wheel):
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        [text] = [file.read(n).decode() for n in names if n.endswith("/METADATA")]
    metadata = Parser().parsestr(text)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(metadata.get_all("Provides-Extra")) == set(project["optional-dependencies"])
    needed = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert [line for line in needed if line.startswith("flwr[simulation]")]
    presets = {f"fedapp/{path.relative_to(ROOT)}" for path in (ROOT / "conf").rglob("*.yaml")}
    assert presets <= set(names) and "fedapp/py.typed" in names


def test_the_demo_ends_with_a_picture(fedapp, tmp_path):
    """From an empty folder, without Flower; a page shows its verdict."""
    done = fedapp("fedapp", "demo")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs/demo/who-gained.svg").is_file()
    shown = (ROOT / "docs/results/first_ten_minutes.md").read_text().splitlines()
    said = [line for line in done.stdout.splitlines() if "beyond chance" in line]
    assert len(said) == 3 and set(said) <= set(shown)


def test_it_knows_the_hash_of_the_app_that_a_run_brings(fedapp):
    """Its two general names lie in a folder of the package, so that it can be made at a site."""
    said = fedapp("fedapp", "approve", "--hash").stdout
    assert said.split()[0] == read_app(ROOT).hash


def test_the_command_works_without_flower(fedapp):
    said = fedapp("fedapp", "--version")
    assert re.fullmatch(r"fedapp \d+\.\d+\.\d+\S*, code [0-9a-f]{16}\n", said.stdout), said.stderr
    assert "digits_demo" in fedapp("fedapp", "presets").stdout
    ran = fedapp("fedapp", "run", "digits_demo", *TINY)
    assert ran.returncode == 0 and "Right answers on the sites' own test images" in ran.stdout
    few = ["--methods", "local_only,fedavg", "--seeds", "0"]
    compared = fedapp("fedapp", "compare", "small", *few, *TINY)
    assert compared.returncode == 0 and "one seed tells nothing" in compared.stdout, compared.stderr


def test_an_example_of_docs_python_works_without_flower(fedapp, tmp_path):
    text = (ROOT / "docs/PYTHON.md").read_text()
    example = re.search(r"^```py\n(.*?)^```", text, re.M | re.S)
    (tmp_path / "example.py").write_text(example[1])
    done = fedapp("python", "example.py")
    assert done.returncode == 0 and done.stdout, done.stderr
