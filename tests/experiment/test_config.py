"""Presets, overrides and what is refused, with the words a person gets to read."""

import dataclasses
import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapp.core.errors import OVERRIDE, ConfigError, Problem
from fedapp.experiment import config
from fedapp.experiment.config import (
    config_keys,
    experiment_digest,
    flower_run_config,
    from_plain,
    load_experiment,
    load_run_config,
    parse_overrides,
    to_plain,
)
from fedapp.experiment.experiment import Experiment
from fedapp.experiment.preset_files import method_path, method_presets, presets, read_yaml
from fedapp.learn.networks import build_model
from fedapp.learn.networks.resnet9 import ResNet9Settings
from fedapp.methods import method_class, method_names


def refusal(preset: str, **overrides) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_experiment(preset, {key.replace("__", "."): v for key, v in overrides.items()})
    return str(caught.value).splitlines()


def method_of(preset: str) -> type:
    """The method's class."""
    return method_class(read_yaml(method_path(preset))["method"]["name"])


@pytest.fixture
def write(tmp_path: Path):
    def written(text: str | bytes) -> str:
        path = tmp_path / "mine.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return written


MINIMAL = "method:\n  name: local_only\n"
DEMO = to_plain(load_experiment("digits_demo"))


# --- what is accepted -----------------------------------------------------------------------------


@pytest.mark.parametrize("preset", presets())
def test_a_preset_loads_and_survives_a_round_trip_through_json(preset):
    experiment = load_experiment(preset)
    assert experiment.name == preset
    again = from_plain(json.loads(json.dumps(to_plain(experiment))), "test")
    assert again == experiment
    assert experiment_digest(again) == experiment_digest(experiment)


def test_an_empty_override_stands_where_the_setting_may_be_empty(write):
    path = write("data: {name: folder, window: '0, 4095'}\n" + MINIMAL)
    assert load_experiment(path).data.window == "0, 4095"
    assert load_experiment(path, {"data.window": ""}).data.window == ""
    words = {"preset": path, "set": "data.window="}
    assert load_run_config(words).data.window == ""


def test_an_empty_override_is_refused_by_name_elsewhere():
    """`seed=$SEED` in a shell, where SEED is not set: the preset's seed would stay in silence."""
    line = "override: seed = ''.* give it a value, or leave it out"
    for said in (
        lambda: load_experiment("fashion_mnist_small", {"seed": ""}),
        lambda: load_experiment("fashion_mnist_small", parse_overrides(["seed="])),
        lambda: load_run_config({"preset": "fashion_mnist_small", "set": "seed="}),
    ):
        with pytest.raises(ConfigError, match=line):
            said()


def test_names_may_be_a_list_in_yaml(write):
    own = "data: {{name: own, image_size: 28, channels: 1, classes: {}, sites: {}}}\n" + MINIMAL
    as_text = load_experiment(write(own.format("'a, b'", "'north, 2'")), {"split.num_clients": 2})
    as_list = load_experiment(write(own.format("[a, b]", "[north, 2]")), {"split.num_clients": 2})
    assert as_list == as_text and as_list.data.classes == "a, b"
    knows = "split: {{num_clients: 2, knows: {}, bags: 2}}\nmethod: {{name: fedul}}\n"
    as_text, as_list = (
        load_experiment(write(knows.format(said))) for said in ("'labels, bags'", "[labels, bags]")
    )
    assert as_list == as_text


@pytest.mark.parametrize(
    ("said", "rule"),
    [("['a, b', c]", "'a, b' has a comma in it, which parts the names"),
     ("[true, a]", "True: must be a name: put it in quotes"),
     ("[[a], b]", r"\['a'\]: must be a name"), ("'[a, b]'", "no brackets here")],
)  # fmt: skip
def test_a_list_of_names_that_cannot_be_one(write, said, rule):
    own = f"data: {{name: own, image_size: 28, channels: 1, classes: {said}}}\n" + MINIMAL
    with pytest.raises(ConfigError, match=f"data.classes = .*{rule}"):
        load_experiment(write(own))


def test_another_method_drops_the_settings_of_the_presets_method():
    experiment = load_experiment("digits_demo", {"method.name": "local_only"})
    assert to_plain(experiment)["method"] == {"name": "local_only"}


def test_a_file_of_ones_own_is_a_preset_named_after_it(write):
    assert load_experiment(write(MINIMAL)) == Experiment(
        "mine", method_class("local_only")(), ResNet9Settings()
    )
    assert load_experiment(write("name: other\n" + MINIMAL)).name == "other"


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-4", 1e-4), ("1.5E3", 1500.0), (".5", 0.5), ("-3", -3), ("010", 10), ("True", True),
     ("on", "on"), ("1:30", "1:30"), ("2020-01-01", "2020-01-01"), ("'12'", "12"), ("", ""),
     ("/a b #c", "/a b #c"), ("a=b", "a=b"), ("0x10", "0x10"), ("~", "")],
)  # fmt: skip
def test_override_texts_are_yaml_1_2_scalars(text, value):
    parsed = parse_overrides([f"key={text}"])["key"]
    assert (type(parsed), parsed) == (type(value), value)


def test_numbers_of_a_file_are_yaml_1_2(write):
    text = MINIMAL + "seed: 010\ntraining:\n  learning_rate: 1e-3\n"
    experiment = load_experiment(write(text))
    assert (experiment.seed, experiment.training.learning_rate) == (10, 1e-3)


# --- what belongs to one value of another ---------------------------------------------------------


def test_what_says_nothing_beside_a_value_laid_over_it_is_dropped(write):
    few = MINIMAL + "split: {label_share: 0.1, deal: dirichlet, dirichlet_alpha: 5.0}\n"
    split = load_experiment(write(few), {"split.labels": "all", "split.deal": "iid"}).split
    assert (split.label_share, split.dirichlet_alpha) == (0.5, 0.5)
    split = load_experiment(write(few), {"method.preset": "fedavg_sl"}).split
    assert (split.label_share, split.dirichlet_alpha) == (0.5, 5.0)
    own = "data: {name: own, classes: 'a, b', channels: 1, image_size: 8}\n"
    data = load_experiment(write(MINIMAL + own), {"data.name": "digits"}).data
    assert (data.classes, data.channels, data.image_size) == ("", 0, 8)


def test_what_says_nothing_where_it_stands_is_refused(write):
    rule = "label_share has no effect where labels is 'all': drop it or set labels to 'some'"
    path = write(MINIMAL + "split: {labels: all, label_share: 0.1}\n")
    assert refusal(path) == [f"{path}: split.label_share = 0.1: {rule}"]
    assert refusal(path, seed=3) == [f"{path}: split.label_share = 0.1: {rule}"]


# --- what is refused: of overrides the lines are in tests/golden/snapshots/overrides.txt ----------


def test_a_problem_is_a_value():
    given = {"rounds.nom_rounds": 3, "method.num_replaced": 9}
    with pytest.raises(ConfigError) as caught:
        load_experiment("fashion_mnist_small", given)
    unknown, together = caught.value.problems
    hint = "did you mean 'rounds.num_rounds'?"
    assert unknown == Problem(OVERRIDE, {"rounds.nom_rounds": 3}, "unknown key", hint)
    assert together.settings["method.num_replaced"] == 9
    assert together.rule == "num_replaced must be below helper_list_size"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (MINIMAL + "seed: 1\nseed: 2\n", "mine.yaml, line 4: key 'seed' stands twice"),
        (MINIMAL + "training:\n  momentum: '0.9'\n",
         "mine.yaml: training.momentum = '0.9': must be a valid number"),
        (MINIMAL + "training:\n  momentum: 1e-1x\n",
         "training.momentum = '1e-1x': must be a valid number"),
        (MINIMAL + "training:\n", "training = None: must be a group of keys"),
        (MINIMAL + "model:\n  width: {a: 1}\n", "model.width = {'a': 1}: must be a valid integer"),
        (MINIMAL + "name: 3\n", "name = 3: must be the preset's name, a text"),
        ("seed: 1\n", "method.name = None: must be one of"),
        ("method: um_pfssl\n", "method = 'um_pfssl': must be a group of keys"),
        ("- 1\n", "must hold groups of keys"),
        ("", "must hold groups of keys"),
        ("data: {", "mine.yaml, line 1: "),
        ("a: 1\n---\nb: 2\n", "mine.yaml, line 2: "),
        ("x: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("? {a: 1}\n: 2\n", "a key must be a plain name"),
        ("a: \x00", "is not YAML"),
        (b"\xff\xfe\x00", "cannot be read"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused_by_name(write, text, words):
    lines = refusal(write(text))
    assert any(words in line and "mine.yaml" in line for line in lines), lines


def test_a_runs_folder_is_no_preset_but_a_file_in_it_is(tmp_path):
    settings = tmp_path / "config.yaml"
    settings.touch()
    line = f"preset '{tmp_path}': a run's folder; name the file in it: {settings}"
    assert refusal(str(tmp_path)) == [line]


def test_an_unknown_preset_names_the_nearest():
    assert refusal("digit_demo") == [
        "preset 'digit_demo': no such preset and no such YAML file; did you mean 'digits_demo'?"
    ]
    assert all(name in refusal("zzz")[0] for name in presets())


@pytest.mark.parametrize("texts", [["seed"], ["=3"], ["seed=1", "seed=2"]])
def test_a_malformed_override_text_is_refused(texts):
    with pytest.raises(ConfigError, match="override '"):
        parse_overrides(texts)


def test_a_run_configs_overrides_are_read_as_a_shell_reads_them():
    said = "seed=3 data.root='/a b' data.download=false training.learning_rate=1e-3"
    found = load_run_config({"preset": "digits_demo", "set": said})
    assert (found.seed, found.data.root, found.data.download) == (3, "/a b", False)
    assert found.training.learning_rate == 1e-3
    for preset, said, words in (
        ("digits_demo", "seed", "must be key=value"),
        ("digits_demo", "data.root='/a", "No closing quotation"),
        ("", "seed=1", "preset = '': name one of"),
    ):
        with pytest.raises(ConfigError, match=words):
            load_run_config({"preset": preset, "set": said})


@pytest.mark.parametrize("text", ["/a'b\"c", "C:\\x", "\\", "'\\\"", "é", ""])
def test_flowers_command_carries_any_text(text):
    """An empty one too: left out, `set` would be what the app's own pyproject.toml says."""
    assert tomllib.loads(flower_run_config({"preset": text})) == {"preset": text}


def test_a_text_that_flower_cannot_carry_is_refused():
    with pytest.raises(ConfigError, match=r"set = .*Flower cannot carry"):
        flower_run_config({"preset": "digits_demo", "set": "data.root=a\nb"})


def test_a_plain_form_of_another_shape_is_refused():
    with pytest.raises(ConfigError, match=r"run\.json: name = 3"):
        from_plain(DEMO | {"name": 3}, "run.json")
    with pytest.raises(ConfigError, match=r"run\.json: model\.depth = 9: unknown key"):
        from_plain(DEMO | {"model": DEMO["model"] | {"depth": 9}}, "run.json")


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)


@given(key=st.sampled_from(sorted(config_keys())) | st.text(max_size=12), value=JUNK)
def test_any_value_is_taken_or_refused_with_its_key(key, value):
    plain = dict(DEMO)
    group, dot, leaf = key.partition(".")
    if dot and group in plain:
        plain[group] = {**plain[group], leaf: value} if isinstance(plain[group], dict) else value
    else:
        plain[key] = value
    try:
        from_plain(plain, "junk")
    except ConfigError as error:
        assert str(error).startswith("junk: ")


# --- digest ---------------------------------------------------------------------------------------


def test_the_digest_changes_with_the_experiment_and_not_with_the_machine():
    base = experiment_digest(load_experiment("fashion_mnist_small"))
    machine = {"data.root": "/x", "data.download": False, "runtime.out": "/y", "runtime.threads": 2}
    assert experiment_digest(load_experiment("fashion_mnist_small", machine)) == base
    assert (
        experiment_digest(dataclasses.replace(load_experiment("fashion_mnist_small"), name="x"))
        == base
    )
    others = {"seed": 5, "method.num_replaced": 1, "training.momentum": 0.8, "data.subset": 900}
    digests = {
        experiment_digest(load_experiment("fashion_mnist_small", {k: v})) for k, v in others.items()
    }
    assert len(digests | {base}) == len(others) + 1


# --- methods --------------------------------------------------------------------------------------


def test_methods_are_the_files_of_the_package():
    folder = Path(__file__).parents[2] / "fedapp" / "methods"
    offering = [path for path in folder.rglob("*.py") if "\nMETHOD = " in path.read_text()]
    files = {path.parent.name if path.stem == "method" else path.stem for path in offering}
    assert set(method_names()) == files and len(files) == len(offering)
    assert {method_class(name).name for name in method_names()} == files


def test_every_setting_of_a_method_is_a_plain_value():
    for name in method_names():
        fields = {f.name: f.default for f in dataclasses.fields(method_class(name))}
        assert all(isinstance(v, str | int | float | bool) for v in fields.values()), name
        assert method_class(name)(**fields) == method_class(name)()


# --- what others call a setting -------------------------------------------------------------------


def test_every_other_word_means_a_setting_and_is_none_itself() -> None:
    assert set(config._SYNONYMS.values()) <= set(config.config_keys())
    leaves = {key.rpartition(".")[2] for key in config.config_keys()}
    # Names of own data's sites are rarer than their number.
    assert leaves & set(config._SYNONYMS) == {"sites"}


@pytest.mark.parametrize("preset", method_presets())
def test_clipping_is_refused_at_once_where_a_site_sends_more_than_models(preset):
    """All that a method's sites send beside models has a role; FedRGD's are the server's own."""
    bags = {"split.bags": 12} if {"bags"} & method_of(preset).learns_from == {"bags"} else {}
    plain = load_experiment("digits_demo", {"method.preset": preset, **bags})
    network = build_model(plain.model, (1, 16, 16), 10)
    more = plain.method.roles(network) and plain.method.name != "fedrgd"
    over = {"method.preset": preset, "privacy.clip": 1.0, **bags}
    if not more:
        load_experiment("digits_demo", over)
        return
    with pytest.raises(ConfigError, match=r"privacy.clip = 1.0: \w+ cannot run so: it sends \w+"):
        load_experiment("digits_demo", over)
