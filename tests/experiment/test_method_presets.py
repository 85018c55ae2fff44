"""Every method preset over every data set's preset, and `method.preset` beside other overrides."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from fedapp.core.errors import ConfigError
from fedapp.core.settings import OWN
from fedapp.experiment.config import (
    experiment_digest,
    from_plain,
    load_experiment,
    to_plain,
)
from fedapp.experiment.preset_files import method_presets, presets
from fedapp.methods import method_class, method_names
from fedapp.methods.incompatibilities import Conditions
from fedapp.methods.um_pfssl.method import UmPfssl

CONF = Path(__file__).parents[2] / "conf"


def with_preset(name, preset="digits_demo", **overrides):
    """A method that learns from bags is given some where the data have none."""
    changes = {key.replace("__", "."): value for key, value in overrides.items()}
    if name in FROM_BAGS:
        base = load_experiment(preset)
        if base.data.name != OWN and not base.split.bags and base.split.labels != "none":
            changes = {"split.bags": 12, **changes}
    return load_experiment(preset, {"method.preset": name, **changes})


FROM_BAGS = ("fedul", "fedpl", "fedllp", "fedllp_vat")


@pytest.mark.parametrize("preset", presets())
def test_every_method_preset_fits_every_data_preset_and_changes_no_more_than_it_says(preset):
    base = load_experiment(preset)
    for name in method_presets():
        if rule := _not_together(base, name):
            with pytest.raises(ConfigError, match=rule):
                with_preset(name, preset)
            continue
        conditions = Conditions(split=base.split)
        if base.split.labels == "none" and with_preset(name).method.incompatibilities(conditions):
            with pytest.raises(ConfigError, match="cannot run so"):
                with_preset(name, preset)
            continue
        experiment = with_preset(name, preset)
        said = yaml.safe_load((CONF / "methods" / f"{name}.yaml").read_text())
        assert experiment.method.name == said["method"].pop("name")
        for key, value in said["method"].items():
            assert getattr(experiment.method, key) == value, (name, key)
        for group in ("data", "training", "transport", "runtime"):
            assert getattr(experiment, group) == getattr(base, group)
        assert experiment.rounds == replace(base.rounds, **said.get("rounds", {}))
        assert experiment.model == replace(base.model, **said.get("model", {}))
        assert experiment.split.labels == said.get("split", {}).get("labels", base.split.labels)
        of_split = {"labels", "label_share", "bags", "bag_mix", "knows"}
        assert set(said) <= {"split", "model", "method", "rounds"}
        assert set(said.get("split", {})) <= of_split
        assert set(said.get("model", {})) <= {"norm"}
        assert set(said.get("rounds", {})) <= {"num_rounds"}
        if preset == "digits_demo":
            assert from_plain(to_plain(experiment), "test") == experiment


def _not_together(base, name):
    """Return the rule by which a preset's data are not for a method preset; empty: they are."""
    if base.split.deal == "natural" and name in FROM_BAGS:
        return "bags has no effect where deal is 'natural'"
    if base.data.name == OWN and name.endswith("_sl"):
        return "own data have no hidden labels to reveal"
    if base.data.name == OWN and name == "fedavg_tenth":
        return "own data come with the labels they have"
    if base.split.labels == "none" and name == "fedavg_tenth":
        return "label_share has no effect where labels is 'none'"
    said = yaml.safe_load((CONF / "methods" / f"{name}.yaml").read_text())
    if not all(hasattr(base.model, key) for key in said.get("model", {})):
        return "not a setting of"
    bags = said.get("split", {}).get("bags", base.split.bags)
    if name.endswith("_sl") and bags:
        return "labels has no effect beside bags"
    return "cannot learn from bags" if bags and name not in FROM_BAGS else ""


def test_every_method_has_a_preset():
    """What else each says is in tests/golden/snapshots/presets.txt."""
    assert {with_preset(name).method.name for name in method_presets()} == set(method_names())


def test_presets_of_one_method_are_told_apart_by_their_digest():
    """Over a network without a norm: a preset may say that its network has one."""
    digests = {experiment_digest(with_preset(name, "flexproto_small")) for name in method_presets()}
    assert len(digests) == len(method_presets())


MI = "mutual_information"


def test_the_ablations_switch_off_one_thing_each():
    full = with_preset("um_pfssl", "fashion_mnist").method
    assert full == UmPfssl()
    for name, change in {
        "um_pfssl_en": {"metric": "entropy"},
        "um_pfssl_ta": {"metric": "accuracy"},
        "um_pfssl_mi": {"corr_variant": "mutual_information"},
        "um_pfssl_mi_labels": dict.fromkeys(("corr_variant", "label_variant"), MI),
        "um_pfssl_no_search": {"search_rounds": 0},
        "um_pfssl_no_aggregation": {"aggregation": False},
        "um_pfssl_no_pseudo_labels": {"pseudo_labels": False},
    }.items():
        assert with_preset(name, "fashion_mnist").method == UmPfssl(**change), name


def test_every_key_of_a_preset_carries_a_comment():
    for path in (CONF / "methods").glob("*.yaml"):
        lines = path.read_text().splitlines()
        assert lines[0].startswith("# ") and lines[0].endswith("."), path
        for line in lines:
            if line.startswith("  "):
                assert "  # " in line, f"{path.name}: {line}"
            assert len(line) <= 100, path


# --- beside other overrides -----------------------------------------------------------------------


def test_another_method_drops_what_the_preset_said_of_its_own():
    assert with_preset("fixavg").method == method_class("fedavg")(**{"objective": "fixmatch"})


def test_the_same_method_keeps_what_the_method_preset_does_not_say():
    """fashion_mnist_small has its own F and nu."""
    small = "fashion_mnist_small"
    base, found = load_experiment(small).method, with_preset("um_pfssl_en", small).method
    kept = ("search_rounds", "update_every", "recalibrate", "helper_list_size")
    assert [getattr(found, key) for key in kept] == [getattr(base, key) for key in kept]
    assert (found.metric, found.corr_variant) == ("entropy", "published")


def test_a_file_without_a_method_may_be_given_one(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("data:\n  name: digits\n")
    assert load_experiment(str(path), {"method.preset": "fixbn"}).method.name == "fedbn"
    with pytest.raises(ConfigError, match=r"method.name = None: must be one of ditto, "):
        load_experiment(str(path))


def test_a_file_may_name_one_itself_and_change_it(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("data: {name: digits}\nmethod: {preset: fixavg, confidence: 0.8}\n")
    found = load_experiment(str(path))
    assert found.method == method_class("fedavg")(**{"objective": "fixmatch", "confidence": 0.8})
    assert load_experiment(str(path), {"method.preset": "fedavg"}).method.objective == "supervised"
    path.write_text("data: {name: digits}\nmethod: {preset: fixav}\n")
    with pytest.raises(ConfigError, match=r"method.preset 'fixav': .*did you mean 'fixavg'\?"):
        load_experiment(str(path))


def test_an_experiment_is_named_after_both_presets():
    assert with_preset("fixavg").name == "digits_demo-fixavg"
    assert load_experiment("digits_demo").name == "digits_demo"
