"""`model.*` in presets and overrides: each network has settings of its own."""

import pytest

from fedapp.core.errors import ConfigError
from fedapp.experiment.config import (
    experiment_digest,
    from_plain,
    load_experiment,
    parse_overrides,
    shared_settings,
    to_plain,
)
from fedapp.learn.networks import DEFAULT_NETWORK, network_names, network_settings
from fedapp.learn.networks.resnet9 import ResNet9Settings

SMALL = "tests.learn.own_network:small"
SHA = "a" * 64


def model(preset="digits_demo", **overrides):
    given = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_experiment(preset, given).model


@pytest.mark.parametrize("name", network_names())
def test_a_network_by_name_takes_its_defaults_and_drops_the_presets_settings(name):
    found = model(model__name=name, method__preset="fedavg")  # which suits each network
    assert name == DEFAULT_NETWORK or found == network_settings(name, {})


@pytest.mark.parametrize("name", ["mlp", "resnet18", SMALL])
def test_it_survives_a_round_trip(name):
    experiment = load_experiment("digits_demo", {"model.name": name})
    plain = to_plain(experiment)
    assert plain["model"]["name"] == name
    assert from_plain(plain, "test") == experiment


def test_a_preset_without_a_network_has_the_papers(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("method:\n  name: local_only\nmodel:\n  width: 3\n")
    for overrides in ({}, {"model.name": "resnet9"}):
        assert load_experiment(str(path), overrides).model == ResNet9Settings(width=3)


def test_ones_own_networks_settings_stand_in_a_preset_like_others(tmp_path):
    path = tmp_path / "mine.yaml"
    text = f"method:\n  name: local_only\nmodel:\n  name: {SMALL}\n  units: 5\n"
    path.write_text(text)
    experiment = load_experiment(str(path))
    assert experiment.model == network_settings(SMALL, {"units": 5})
    assert shared_settings(experiment)["model.units"] == 5
    path.write_text(text + "  units_: 5\n")
    with pytest.raises(ConfigError, match=r"model.units_ = 5: not a setting of .*rate, units$"):
        load_experiment(str(path))


@pytest.mark.parametrize(("written", "sizes"), [("64", (64,)), ("64,32", (64, 32))])
def test_one_hidden_layer_may_be_written_as_a_number(written, sizes):
    overrides = parse_overrides(["model.name=mlp", f"model.hidden={written}"])
    assert load_experiment("digits_demo", overrides).model.sizes == sizes


def test_a_file_of_weights_counts_by_content_wherever_it_lies():
    def digest(**weights):
        named = {"model.name": "resnet18", **{f"model.{k}": v for k, v in weights.items()}}
        return experiment_digest(load_experiment("digits_demo", named))

    one, two = (digest(weights=path, weights_sha256=SHA) for path in ("/a/w.pth", "b.safetensors"))
    assert one == two == digest(weights_sha256=SHA) != digest()
