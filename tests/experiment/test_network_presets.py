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
from fedapp.learn.networks.mlp import MLPSettings
from fedapp.learn.networks.resnet9 import ResNet9Settings

SMALL = "tests.learn.own_network:small"
SHA = "a" * 64


def model(preset="digits_demo", **overrides):
    given = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_experiment(preset, given).model


@pytest.mark.parametrize("name", network_names())
def test_a_network_by_name_takes_its_defaults_and_drops_the_presets_settings(name):
    assert name == DEFAULT_NETWORK or model(model__name=name) == network_settings(name, {})


def test_naming_the_presets_own_network_keeps_its_settings():
    assert model(model__name="resnet9") == model() == ResNet9Settings(width=8)


def test_a_network_and_its_setting_in_one_go():
    assert model(model__name="mlp", model__hidden="9", model__dropout=0) == MLPSettings("9", 0.0)


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


@pytest.mark.parametrize(("overrides", "line"), [
    ({"model__name": "resnet"},
     "override: model.name = 'resnet': no such network; did you mean 'resnet9'?"),
    ({"model__name": 9}, "override: model.name = 9: must be one of encoder, fedsiam_cifar, "
                         "fedsiam_mnist, fedul_mnist, mlp, resnet18, resnet9"),
    ({"model__name": "mlp", "model__width": 3},
     "override: model.width = 3: not a setting of mlp; valid: dropout, hidden, name"),
    ({"model__name": "mlp", "model__hidden": "0"},
     "override: model.hidden = '0': hidden must be numbers in "
     "[1, 65536] with commas between, as '200, 200'"),
    ({"model__name": "mine.nets"},
     "override: model.name = 'mine.nets': no such network; a function of your own is named "
     "package.module:function"),
    ({"model__name": "tests.learn.own_network:needs"},
     "conf/digits_demo.yaml: model.units: has no default; give it a value"),
    ({"model__name": "mlp", "model__hidden": 64.5},
     "override: model.hidden = 64.5: must be a valid string; the value is no text: write it in "
     "quotes"),
    ({"model__name": "resnet18", "model__weights_sha256": "A"},
     "override: model.weights_sha256 = 'A': must match pattern '^([0-9a-f]{64})?$'"),
    ({"data__image_size": 224},
     "override: data.image_size = 224: resnet9 takes images of 8 to 96 pixels a side; change "
     "data.image_size or model.name"),
    ({"model__name": "no.such:f"},
     "override: model.name = 'no.such:f': cannot import 'no.such' (No module named 'no'); install "
     "it on this machine, or name its folder in PYTHONPATH"),
])  # fmt: skip
def test_what_does_not_go_together_is_refused_in_one_line(overrides, line):
    with pytest.raises(ConfigError) as error:
        model(**overrides)
    assert str(error.value) == line


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
