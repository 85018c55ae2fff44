"""What ships: pins, the keys that Flower lets a run override, presets, bundle, Makefile."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from io import BytesIO
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_files
from flwr.cli.utils import collect_files
from flwr.common.config import flatten_dict, fuse_dicts, parse_config_args
from packaging.requirements import Requirement

from fedapp.__main__ import main as command_line
from fedapp.core.errors import ConfigError
from fedapp.experiment.code_hash import code_hash
from fedapp.experiment.config import (
    AS_PRESET,
    NO_SETTINGS,
    config_keys,
    load_experiment,
    load_run_config,
)
from fedapp.experiment.preset_files import DEMO, read_yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PINS = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if not line.startswith("#")
)
NEEDED, EXTRAS = PROJECT["project"]["dependencies"], PROJECT["project"]["optional-dependencies"]
DEV = [line for lines in EXTRAS.values() for line in lines if not line.startswith("fedapp")]


# --- pins -----------------------------------------------------------------------------------------


def test_every_pin_is_an_exact_public_version_with_the_hashes_of_its_files():
    found = {}
    body = (ROOT / "requirements/constraints-hashes.txt").read_text()
    body = re.sub(r"^#.*\n", "", body, flags=re.MULTILINE).replace(" \\\n    ", " ")
    for entry in body.splitlines():
        pin, *hashes = entry.split()
        assert re.fullmatch(r"[a-z0-9-]+==[0-9]+(\.[0-9]+)*(\.post[0-9]+|b[0-9]+)?", pin), pin
        assert hashes and all(re.fullmatch("--hash=sha256:[0-9a-f]{64}", h) for h in hashes), pin
        name, version = pin.split("==")
        found[name] = version
    assert found == PINS and list(PINS) == sorted(PINS)


def test_torch_and_torchvision_are_a_pair():
    """Both lie in their ranges with others too, but torchvision's operators fit one torch only."""
    assert (PINS["torch"], PINS["torchvision"]) == ("2.12.1", "0.27.1")


@pytest.mark.parametrize("line", NEEDED + DEV)
def test_every_range_holds_its_pin(line):
    requirement = Requirement(line)
    assert requirement.specifier.contains(PINS[requirement.name]), line
    assert "://" not in line


def test_a_plain_flwr_run_has_nothing_to_install(tmp_path):
    """As Flower has uv do it in the installed bundle, but without a network."""
    named = sorted({Requirement(line).name for line in NEEDED + DEV})
    assert PROJECT["tool"]["uv"] == {"exclude-dependencies": named}
    assert "dependency-groups" not in PROJECT
    bundle, made = tmp_path / "bundle", tmp_path / "made"
    bundle.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (bundle / name).write_bytes((ROOT / name).read_bytes())
    command = ["uv", "sync", "--python", sys.executable, "--no-install-project"]
    done = subprocess.run(
        [sys.executable, "-m", *command, "--no-install-package", "flwr", "--inexact"],
        cwd=bundle,
        env=os.environ | {"UV_PROJECT_ENVIRONMENT": str(made), "UV_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not list(made.glob("lib/python*/site-packages/*.dist-info"))


def test_without_what_it_needs_the_command_says_so_in_a_line(tmp_path):
    (tmp_path / "fedapp").symlink_to(ROOT / "fedapp")
    command = [sys.executable, "-S", "-m", "fedapp", "--help"]  # -S: no site-packages
    done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"fedapp: \w+ is not installed: .*pip install \..*\n", done.stderr)


def test_the_command_says_its_version(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fedapp", "--version"])
    with pytest.raises(SystemExit) as ended:
        command_line()
    assert ended.value.code == 0
    said = f"fedapp {metadata.version('fedapp')}, code {code_hash()[1]}\n"
    assert capsys.readouterr().out == said


def test_no_file_names_a_package_index():
    shipped = [
        "pyproject.toml",
        "constraints.txt",
        "Makefile",
        ".ci/run",
        ".pre-commit-config.yaml",
    ]
    for name in shipped:
        assert not re.search(r"https?://|index-url|find-links", (ROOT / name).read_text()), name


# --- Flower's run config --------------------------------------------------------------------------


DEFAULTS = flatten_dict(PROJECT["tool"]["flwr"]["app"]["config"])


def by_flower(line, defaults=DEFAULTS):
    """The experiment of `flwr run . --run-config LINE`."""
    return load_run_config(fuse_dicts(defaults, parse_config_args([line])))


def as_toml():
    """The list of settings in pyproject.toml, to be copied from a failed assertion."""
    groups = {}
    for key in sorted(config_keys(), key=lambda key: ("." in key, key)):
        group, _, name = key.rpartition(".")
        groups.setdefault(group, []).append(f'{name} = "{AS_PRESET}"')
    return "\n".join(
        line
        for group, lines in groups.items()
        for line in ([f"\n[tool.flwr.app.config.{group}]"] if group else []) + lines
    )


def test_flower_knows_every_setting_and_keeps_what_the_preset_says():
    assert as_toml() in (ROOT / "pyproject.toml").read_text()
    assert DEFAULTS.keys() == {*NO_SETTINGS, *config_keys()}
    assert load_run_config(DEFAULTS) == load_experiment(DEMO)  # what `make demo` runs


def test_an_override_changes_one_key_and_keeps_the_rest():
    changed = by_flower("rounds.num_rounds=1 training.learning_rate=1 data.download=false")
    given = {"rounds.num_rounds": 1, "training.learning_rate": 1, "data.download": False}
    assert changed == load_experiment(DEMO, given)
    both = by_flower("preset='cifar10' seed=2 method.preset='fedavg' set='seed=2 data.root=/d'")
    over = {"seed": 2, "method.preset": "fedavg", "data.root": "/d"}
    assert both == load_experiment("cifar10", over)


@pytest.mark.parametrize(
    ("line", "words"),
    [("seed=''", "seed = ''.* give it a value, or leave it out"),
     ("rounds.num_rounds='1'", "rounds.num_rounds = '1': must be a valid integer"),
     ("method.num_replaced=3 method.preset='fedavg'", "method.num_replaced = 3"),
     ("seed=1 set='seed=2'", "seed = 2 in `set`, but seed = 1 by its own key: keep one")],
)  # fmt: skip
def test_a_wrong_value_of_a_key_is_refused_as_on_the_command_line(line, words):
    with pytest.raises(ConfigError, match=words):
        by_flower(line)


def test_a_command_lines_overrides_reach_the_experiment_with_their_types():
    line = (
        "preset='fashion_mnist' set='method.num_replaced=3 training.learning_rate=1e-3 "
        "data.download=false'"
    )
    experiment = by_flower(line)
    assert experiment.name == "fashion_mnist"
    assert experiment.method.num_replaced == 3
    assert experiment.training.learning_rate == 1e-3
    assert not experiment.data.download


# --- presets --------------------------------------------------------------------------------------

PRESETS = sorted((ROOT / "conf").glob("*.yaml"))


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_every_key_of_a_preset_is_commented(path):
    for line in path.read_text().splitlines():
        if re.match(r"\s*\w+: *[^\s#]", line):
            assert re.search(r" # \S", line), line


@pytest.mark.parametrize("name", ["fashion_mnist", "cifar10", "pathmnist", "organamnist"])
def test_presets_named_after_the_paper_have_its_settings(name):
    """Sec. VI-A of the final paper; K and tau of the medical sets: Sec. VI-E."""
    experiment = load_run_config({"preset": name})
    medical = name in {"pathmnist", "organamnist"}
    method, training, rounds = experiment.method, experiment.training, experiment.rounds
    assert (method.helper_list_size, method.num_replaced, method.search_rounds) == (5, 2, 30)
    assert (method.update_every, method.metric) == (10, "both")
    variant = "mutual_information" if medical else "published"  # which we advise
    assert (method.corr_variant, method.label_variant) == (variant, variant)
    assert (method.helper_scope, method.recalibrate) == ("all", False)
    assert (training.local_epochs, training.batch_size) == (5, 64)
    assert (training.learning_rate, training.momentum) == (1e-4, 0.9)
    assert (rounds.num_rounds, rounds.sample_rate) == (200, 1.0 if medical else 0.1)
    split = experiment.split
    assert split.num_clients == (20 if medical else 100)
    assert (split.dirichlet_alpha, split.label_alpha) == (0.5, 0.5)
    assert (split.train_share, split.val_share, experiment.model.dropout) == (0.7, 0.1, 0.5)
    assert (experiment.data.name, experiment.data.subset) == (name, 0)


# --- Flower app bundle and wheel ------------------------------------------------------------------


def test_the_flower_bundle_holds_the_program_and_nothing_else():
    shipped = ("fedapp", "server_app", "client_app", "conf", "tests", "docs")
    files = {
        name: path
        for name, path in collect_files(ROOT).items()
        if "/" not in name or name.startswith(shipped)
    }
    bundle, _ = build_fab_from_files(files)
    names = set(zipfile.ZipFile(BytesIO(bundle)).namelist()) - {".info/CONTENT"}
    packages = {"fedapp", "server_app", "client_app"}
    code = {p.relative_to(ROOT).as_posix() for k in packages for p in (ROOT / k).rglob("*.py")}
    conf = {path.relative_to(ROOT).as_posix() for path in (ROOT / "conf").rglob("*.yaml")}
    presets = {name for name in conf if not name.startswith("conf/sweeps/")}
    assert names == code | presets | {"pyproject.toml", "README.md", "LICENSE"}
    assert len(bundle) < 2_800_000


def test_the_environment_that_the_readme_makes_stays_out_of_the_bundle():
    """In a clone it lies beside the code, and its files are too deep for Flower."""
    made = re.findall(r"python3 -m venv (\S+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    left_out = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert made and all(f"{name}/" in left_out for name in made)


def test_the_wheel_carries_the_presets_and_no_general_names():
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    app = {name: f"fedapp/app/{name}" for name in ("client_app", "server_app", "pyproject.toml")}
    assert wheel == {"packages": ["fedapp"], "force-include": {"conf": "fedapp/conf", **app}}


def test_the_readmes_badges_are_files_of_ours_and_true():
    said = (ROOT / "docs/pictures/badges.svg").read_text()
    least = PROJECT["project"]["requires-python"].replace(">", "&gt;")
    assert f">{least}<" in said and f">{PROJECT['project']['license']}<" in said
    assert not re.search(r"!\[[^\]]*\]\(https?:", (ROOT / "README.md").read_text())


def test_the_citation_is_of_this_version():
    """By the required fields and types of the Citation File Format 1.2.0."""
    said = read_yaml(ROOT / "CITATION.cff")
    required = {"cff-version", "message", "title", "authors"}
    optional = {"type", "version", "license", "abstract", "keywords", "references"}
    assert required <= said.keys() <= required | optional
    assert (said["cff-version"], said["type"]) == ("1.2.0", "software")
    for key in ("version", "license"):
        assert said[key] == PROJECT["project"][key]
    assert said["authors"] == [{"name": "fedapp developers"}]
    for paper in said["references"]:
        assert paper.keys() >= {"type", "title", "authors", "journal", "year", "doi"}
        assert paper["type"] == "article"


def test_the_changelog_begins_with_this_version():
    text = (ROOT / "CHANGELOG.md").read_text()
    first = re.search(r"^## (.+)$", text, flags=re.MULTILINE)[1]
    version = re.escape(PROJECT["project"]["version"])
    assert re.fullmatch(rf"Unreleased|{version} - \d{{4}}-\d\d-\d\d", first)


# --- Makefile -------------------------------------------------------------------------------------
