"""A network of one's own, or a plain row of layers: its settings, its contract, its refusals."""

import pickle
import re
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from fedapp.core.errors import ConfigError
from fedapp.core.plugins import load_function, register_function
from fedapp.learn.networks import build_model, network_class, network_settings
from fedapp.learn.networks._own import SequentialNetwork

HERE = "tests.learn.own_network"
SMALL = f"{HERE}:small"


def test_its_settings_are_its_parameters_with_their_defaults():
    assert asdict(network_settings(SMALL, {})) == {"units": 16, "rate": 0.5}
    settings = network_settings(SMALL, {"units": 3})
    assert build_model(settings, (5,), 2).features == 3
    assert settings == network_settings(SMALL, {"units": 3, "rate": 0.5})
    assert hash(settings) != hash(network_settings(SMALL, {}))


def test_its_settings_can_be_handed_to_another_process():
    settings = network_settings(SMALL, {"units": 3})
    assert pickle.loads(pickle.dumps(settings)) == settings


@pytest.mark.parametrize(("name", "fields", "says"), [
    (SMALL, {"units": "3"}, "valid integer"),
    (SMALL, {"depth": 3}, "unexpected"),
    (f"{HERE}:needs", {}, "required"),
])  # fmt: skip
def test_its_settings_are_checked_like_others(name, fields, says):
    with pytest.raises(ValidationError, match=f"(?i){says}"):
        network_settings(name, fields)


@pytest.mark.parametrize(("name", "says"), [
    ("no.such.module:f", "cannot import 'no.such.module' .* PYTHONPATH"),
    (":f", "must be package.module:function"),
    ("tests.learn.own_network:", "must be package.module:function"),
    ("tests.learn.own_network:nothing", "has no function 'nothing'"),
    ("tests.learn.own_network:Small", "has no function 'Small'"),
    ("os:system", "has no function 'system'"),
    ("os:getenv", "its return type must be Network"),
    (f"{HERE}:without_type", "its return type must be Network"),
    (f"{HERE}:untyped", "parameter 'rate' is a setting: write its type"),
    (f"{HERE}:packed", "parameter 'settings' is a setting: write its type"),
    (f"{HERE}:named", "parameter 'name': no setting can have this name"),
    (f"{HERE}:weighted", "parameter 'weights': no setting can have this name"),
    (f"{HERE}:odd_type", "its settings must be of type bool, int, float or str"),
    (f"{HERE}:listed", "its settings must be of type bool, int, float or str"),
    (f"{HERE}:too_few", "must be `def function"),
])  # fmt: skip
def test_what_is_no_such_function_is_refused_in_a_line(name, says):
    with pytest.raises(ConfigError, match=says) as error:
        network_class(name)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(("function", "says"), [
    ("raises", r"failed for inputs \[3, 4\] and 2 classes \(RuntimeError: out of luck\)"),
    ("no_network", "the function: must return a Network, not Linear"),
    ("no_trunk", "TypeError: .*abstract.*trunk"),
    ("no_head", "head: must be an nn.Linear with a bias"),
    ("other_head", "head: must go from `features` numbers to 2 classes"),
    ("other_features", "head: must go from `features` numbers"),
    ("no_dropout", "dropout: must be an nn.Dropout"),
    ("doubles", "hidden.weight: is torch.float64, must be float32 or int64"),
    ("one_tensor", "trunk: must return a tuple of tensors"),
    ("drops_in_trunk", "trunk: gives other answers each time: drop in `embed` only"),
    ("wide_embed", r"embed: must return \[n, 16\]"),
    ("half_logits", r"classify: must return float32 \[n, 2\]"),
])  # fmt: skip
def test_a_broken_contract_names_the_member(function, says):
    name = f"{HERE}:{function}"
    with pytest.raises(ConfigError, match=says) as error:
        build_model(network_settings(name, {}), (3, 4), 2)
    text = str(error.value)
    assert text.startswith(f"model.name = '{name}': ") and len(text.splitlines()) == 1


def test_the_documents_examples_are_networks(tmp_path, monkeypatch):
    text = (Path(__file__).parents[2] / "docs/extend/networks.md").read_text()
    code = re.findall(r"```py\n(.*?)```", text, re.S)
    (tmp_path / "documented_nets.py").write_text("\n".join(code))
    monkeypatch.syspath_prepend(tmp_path)
    settings = network_settings("documented_nets:small", {"units": 8})
    assert build_model(settings, (1, 8, 8), 3).features == 8
    in_row = network_settings("documented_nets:row", {"units": 8})
    assert build_model(in_row, (5,), 3).features == 8


def row(inputs: tuple[int, ...], num_classes: int, units: int = 6) -> nn.Sequential:
    hidden = nn.Linear(inputs[0], units)
    return nn.Sequential(hidden, nn.ReLU(), nn.Dropout(0.5), nn.Linear(units, num_classes))


def headless(inputs: tuple[int, ...], num_classes: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs[0], num_classes))


def drops_twice(inputs: tuple[int, ...], num_classes: int) -> nn.Sequential:
    head = nn.Linear(inputs[0], num_classes)
    return nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5), head)


def test_a_row_answers_as_the_row_does():
    layers = row((4,), 3).eval()
    x = torch.randn(5, 4)
    network = SequentialNetwork(layers).eval()
    assert torch.equal(network(x), layers(x))
    assert torch.equal(network.tail(network.trunk(x)), layers(x))
    assert (network.features, network.dropout.p) == (6, 0.5)


def test_a_rows_parameters_are_settings():
    network = build_model(network_settings(register_function(row), {"units": 9}), (4,), 3)
    assert (network.features, network.head.out_features) == (9, 3)


@pytest.mark.parametrize(("function", "says"), [
    (headless, "must return a row that ends in Dropout and Linear"),
    (drops_twice, "trunk: gives other answers each time"),
])  # fmt: skip
def test_what_cannot_be_cut_is_refused_in_a_line(function, says):
    with pytest.raises(ConfigError, match=says) as error:
        build_model(network_settings(register_function(function), {}), (4,), 3)
    assert len(str(error.value).splitlines()) == 1


def test_a_function_that_was_given_is_found_and_the_last_one_counts():
    def nested():
        """Nobody could import it."""

    first = nested
    name = register_function(first)
    assert load_function(name) is first

    def nested():
        """Of the same name."""

    assert register_function(nested) == name and load_function(name) is nested
    for wrong in (3, lambda: None, nn.Linear):
        with pytest.raises(ConfigError, match="write it with `def`"):
            register_function(wrong)
