"""`fedapp advise` as a person sees it: what is run, the words, JSON, going on, bad input."""

import json
import shlex
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from PIL import Image

from fedapp.experiment.codehash import code_hash
from fedapp.experiment.config import load_experiment
from fedapp.experiment.presetfiles import CONF
from fedapp.ground.errors import ConfigError, DataError, RunError
from fedapp.tools.advise import advise as advising
from fedapp.tools.advise.advise import advise_on, check
from fedapp.tools.advise.plan import CANDIDATES, FOLDERS, plan, rates
from fedapp.tools.advise.rule import advise
from fedapp.tools.advise.words import (
    NAMES,
    anchored,
    as_json,
    left_out_words,
    reason,
    table,
    tuned_words,
)
from fedapp.tools.compare.cells import build_cells
from fedapp.tools.compare.tuning import RATE

SEEDS = range(12)
FOUND = {
    "local_only": {k: 0.5 + 0.01 * (k % 3) for k in SEEDS},
    "one_round": {k: 0.6 + 0.01 * (k % 4) for k in SEEDS},
    "fedavg": {k: 0.7 + 0.01 * (k % 4) for k in SEEDS},
    "fedavg_ft": {k: 0.71 + 0.05 * (k % 2) for k in SEEDS},
    "recommended": {k: 0.9 + 0.01 * (k % 3) for k in SEEDS},
}
COSTS = dict.fromkeys(FOUND, 61.0)


def test_a_preset_is_run_at_a_small_budget_with_the_persons_settings_over_it():
    grid, words, left_out = plan("fashion_mnist", {"data.subset": 500}, [0, 1])
    assert grid.common == {
        "rounds.num_rounds": 5, "rounds.sample_rate": 0.5, "training.local_steps": 25,
        "data.subset": 500,
    }  # fmt: skip
    assert tuple(grid.methods) == CANDIDATES and grid.seeds == (0, 1)
    assert words == "fashion_mnist data.subset=500" and left_out == {}
    own, _, _ = plan("digits_demo", {"rounds.num_rounds": 9}, [0])
    assert own.common["rounds.num_rounds"] == 9 and own.common["rounds.sample_rate"] == 0.5


def test_a_folder_of_images_is_dealt_to_simulated_sites(tmp_path):
    with pytest.raises(DataError, match="no images of the form"):
        plan(str(tmp_path), {}, [0])
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").touch()
    grid, words, _ = plan(str(tmp_path), {"split.num_clients": 4}, [0])
    assert grid.common["data.name"] == "folder" and grid.common["data.root"] == str(tmp_path)
    assert f"data.root={tmp_path}" in words and grid.name == tmp_path.name
    odd = tmp_path / "Dr. O'Neil's $scans; new"
    (odd / "a").mkdir(parents=True)
    (odd / "a" / "1.png").touch()
    _, words, _ = plan(str(odd), {}, [0])
    assert f"data.root={odd}" in shlex.split(words), "it can be pasted"


@pytest.mark.parametrize(("data", "given", "says"), [
    ("digit_demo", {}, "no such preset, YAML file or folder; did you mean 'digits_demo'"),
    ("digits_demo", {"rounds.rounds": 1}, "rounds.num_rounds"),
    ("digits_demo", {"method.features": "hog"}, "hog': advise compares methods; give settings of"),
    ("digits_demo", {"method.own_mix": False, "method.name": "ditto"}, "take `fedapp compare` for"),
    ("digits_demo", {"method": "ditto"}, "advise compares methods"),
    ("digits_demo", {"rounds.robust": "mediann"}, "^override: .*no such rule; did you mean"),
    ("digits_demo", {"split.labels": "none"}, "^override: .*: set split.server_share$"),
    ("digits_demo", {"confidence": 0.5}, "confidence = 0.5: unknown key; valid: data, method"),
    ("fedul_small", {}, "none of its own can run: conf/fedul_small.yaml: split.bags = 10: "
                        "local_only cannot learn from bags; leave it out or .*; `fedapp compare` "),
])  # fmt: skip
def test_bad_input_is_a_line(data, given, says):
    with pytest.raises(ConfigError, match=says) as error:
        plan(data, given, [0])
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(("data", "given", "runs", "said"), [
    ("digits_demo", {"rounds.robust": "median"},
     ("local_only", "fedavg", "fedavg_ft", "recommended"), [
        "left out: one round without training: it adds sums of sites, and averages no models",
    ]),
    ("digits_demo", {"privacy.clip": 1.0}, ("local_only", "fedavg", "fedavg_ft", "prior_shift"), [
        "left out: one round without training: it sends sums, and no models",
        "left out: recommended: it sends sums beside models (method.closed=none: it does not); "
        "prior shift, its first version, takes its place",
    ]),
    ("digits_server", {}, ("one_round", "fedavg", "fedavg_ft"), [
        "left out: a network alone: its sites learn from labels of their own",
        "left out: recommended: its sites count which pseudo-labels are right: set "
        "method.weigh=false",
    ]),
])  # fmt: skip
def test_what_cannot_run_is_left_out_by_the_methods_own_reason(data, given, runs, said):
    grid, _, left_out = plan(data, given, [0])
    assert (tuple(grid.methods), left_out_words(left_out)) == (runs, said)
    assert set(grid.tune.values) == set(runs)
    own = load_experiment(data, {"method.preset": "fedavg"}).rounds.num_rounds
    assert grid.common["rounds.num_rounds"] == min(own, 5), "not of one_round's single round"


def test_a_preset_whose_own_file_is_wrong_for_one_method_is_said_with_its_file(tmp_path):
    file = tmp_path / "mine.yaml"
    text = (CONF / "digits_demo.yaml").read_text()
    file.write_text(text.replace("preset: recommended", "name: fedavg\n  server_rate: -1"))
    grid, _, left_out = plan(str(file), {}, [0])
    assert tuple(grid.methods) == ("local_only", "one_round", "recommended")
    assert left_out["fedavg"].startswith(f"{file}: method.server_rate = -1: must be")
    file.write_text(text.replace("  num_clients: 10", "  num_clients: 0"))
    with pytest.raises(ConfigError, match=f"^{file}: split.num_clients = 0: must be"):
        plan(str(file), {}, [0])


def test_all_is_checked_before_anything_runs(tmp_path):
    """A rate that only tuning would set, a setting of one method, and what lies in the folder."""
    grid, _, _ = plan("digits_demo", {}, [0])
    check(grid, tmp_path)
    assert list(tmp_path.iterdir()) == []
    tried = {name: {RATE: [0.1, 0.2, -1.0]} for name in grid.methods}
    wrong = replace(grid, tune=grid.tune.model_copy(update={"values": tried}))
    with pytest.raises(ConfigError, match=r"fedavg\.3: training\.learning_rate = -1"):
        check(wrong, tmp_path)
    closed = {**grid.methods, "one_round": {**grid.methods["one_round"], "method.closed": "none"}}
    with pytest.raises(ConfigError, match=r"method\.closed = 'none': not a setting of one_round"):
        check(replace(grid, methods=closed), tmp_path)


@pytest.mark.parametrize(("rate", "fits"), [(0.01, True), (0.5, False)])
def test_a_folder_of_other_settings_is_refused_before_tuning(tmp_path, rate, fits):
    grid, _, _ = plan("digits_demo", {}, [0])
    given, _, _ = plan("digits_demo", {RATE: rate}, [0])
    begun = next(cell for cell in build_cells(given, tmp_path) if cell.method == "fedavg")
    begun.folder.mkdir(parents=True)
    facts = {"experiment": begun.digest, "code": code_hash()[1]}
    (begun.folder / "run.json").write_text(json.dumps(facts))
    if fits:
        check(grid, tmp_path)
    else:
        with pytest.raises(RunError, match="was run with other settings"):
            check(grid, tmp_path)


def test_it_says_what_is_left_out_and_then_compares_the_others(tmp_path, capsys, monkeypatch):
    def stopped(grid, folder, jobs, driver):
        print("tuning", *grid.methods)
        return 130, None, []

    monkeypatch.setattr(advising, "execute", stopped)
    assert advise_on("digits_demo", {"rounds.robust": "median"}, out=tmp_path) == 130
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("left out: one round without training: it adds sums")
    assert second.startswith("tuning local_only.1") and "one_round" not in second
    beside = StringIO()
    monkeypatch.setattr(advising, "stderr", beside)
    advise_on("digits_demo", {"rounds.robust": "median"}, out=tmp_path, as_data=True)
    assert capsys.readouterr().out == "" and beside.getvalue().startswith("left out: one round")


def test_a_fault_of_the_data_is_said_once_and_nothing_is_run(tmp_path):
    for name in "ab":
        (tmp_path / "images" / name).mkdir(parents=True)
        for k in range(12):
            image = Image.fromarray(np.full((8, 8), 20 * k, np.uint8))
            image.save(tmp_path / "images" / name / f"{k}.png")
    (tmp_path / "images/b/3.png").write_bytes(b"no image")
    few = {"split.num_clients": 2}
    with pytest.raises(DataError, match=r"b/3\.png: damaged or not an image") as error:
        advise_on(str(tmp_path / "images"), few, seeds=[0], out=tmp_path / "out")
    assert len(str(error.value).splitlines()) == 1
    assert not list(tmp_path.glob("out/**/*.log"))


def test_the_words_of_a_clear_case():
    advice = advise(FOUND)
    lines = table(FOUND, advice, COSTS)
    assert len(lines) == 6 and "90.0" not in lines[1] and "1 min 01 s" in lines[1]
    first, second = reason(advice, 900, [0.5] * 12)
    assert first == (
        "Take: recommended. It is better than a network alone, one round without training and "
        "fine-tuned average, beyond chance."
    )
    assert second == "Nothing else that was tried can be more than 1 point better."


def test_the_words_where_nothing_can_be_told_or_nothing_is_needed():
    noisy = {"local_only": FOUND["local_only"], "fedavg": {
        seed: 0.55 + 0.3 * (-1) ** seed for seed in FOUND["local_only"]
    }}  # fmt: skip
    first, second, third, _ = reason(advise(noisy), 1200, [0.3] * 12)
    assert first == "Cannot tell: nothing is shown to be better than a network alone."
    assert second.startswith("1,200 test images a seed cannot tell it from plain average: diff")
    assert third == "Highest so far: plain average."
    equal = {"local_only": FOUND["local_only"], "fedavg": FOUND["local_only"]}
    text, labels = reason(advise(equal), 10, [1.0] * 12)
    assert text.startswith("Take: a network alone. Nothing else")
    assert labels.startswith("Nearly all images have a label")
    assert "There is one site" in reason(advise(equal), 10, [0.2])[1]


def test_every_candidate_is_tuned_by_the_same_rates_on_a_seed_apart():
    grid, _, _ = plan("digits_demo", {"training.learning_rate": 0.05}, [0, 1])
    assert grid.tune is None, "a given rate is that of all"
    grid, _, _ = plan("digits_demo", {}, [0, 4, 1])
    own = load_experiment("digits_demo", {}).training.learning_rate
    assert grid.tune.seeds == [5] and set(grid.tune.values) == set(CANDIDATES)
    assert grid.tune.values.pop("one_round") == {}, "it trains nothing"
    assert {tuple(v["training.learning_rate"]) for v in grid.tune.values.values()} == {
        tuple(rates(own))
    }
    assert rates(0.03) == [0.03, 0.01, 0.09] and rates(1.0) == [1.0, 0.33, 3.0]


def test_the_words_of_what_was_tuned():
    chosen = {"local_only": {"training.learning_rate": 0.01}}
    assert tuned_words(chosen)[0].endswith("another seed: a network alone 0.01")
    more = tuned_words({**chosen, "one_round": {}, "fedavg_ft": {"training.learning_rate": 0.1}})
    assert more[0].endswith("another seed: a network alone 0.01 and fine-tuned average 0.1")
    assert tuned_words({}) == []
    assert not any("," in name for name in NAMES.values()), "they stand in lists"


def test_one_seed_tells_nothing_however_many_sites_it_has():
    one = {name: {0: runs[0]} for name, runs in FOUND.items()}
    [said] = reason(advise(one), 100_000, [0.5] * 1000)
    assert said.startswith("One seed tells nothing about other seeds")


def test_what_joining_is_worth_is_said_over_the_same_closed_form_alone():
    """By hand: 5 and 15 points, mean 10, 12.706 sd / sqrt(2) = 63.5 each way."""
    [line] = anchored({0: 0.80, 1: 0.90}, {0: 0.75, 1: 0.75})
    assert line == (
        "What joining is worth: +10.0 points (-53.5 to +73.5) over the same closed form at each "
        "site alone, which has 75.0 %."
    )
    [line] = anchored({0: 0.80}, {0: 0.75})
    assert "worth: +5.0 points over the same" in line
    assert anchored({0: 0.8}, {}) == []


def test_json_holds_all_of_it():
    left_out = {"prior_shift": "it cannot"}
    whole = as_json(FOUND, advise(FOUND), COSTS, 900, left_out=left_out)
    found = json.loads(json.dumps(whole))
    assert (found["method"], found["clear"], found["test_images"]) == ("recommended", True, 900)
    assert list(found["candidates"]) == list(CANDIDATES) and found["left_out"] == left_out
    assert found["candidates"]["local_only"]["difference"] == pytest.approx(-0.4)


@pytest.mark.slow
def test_on_a_folder_it_advises_and_goes_on(tmp_path, capsys):
    draw = np.random.default_rng(0)
    for label, level in (("dark", 40), ("bright", 160)):
        (tmp_path / "images" / label).mkdir(parents=True)
        for k in range(60):
            pixels = draw.integers(level, level + 60, (10, 10)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / label / f"{k}.png")
    small = {"split.num_clients": 3, "rounds.num_rounds": 1, "training.local_steps": 2}
    asked = {"seeds": [0, 1], "out": tmp_path / "out", "jobs": 2}
    assert advise_on(str(tmp_path / "images"), {**small, "model.width": 4}, **asked) == 0
    said = capsys.readouterr().out
    assert "a network alone" in said and "In full: fedapp run" in said
    again = advise_on(str(tmp_path / "images"), {**small, "model.width": 4}, **asked, as_data=True)
    found = json.loads(capsys.readouterr().out)
    assert again == 0 and set(found["candidates"]) == set(CANDIDATES)
    tried = rates(load_experiment(str(FOLDERS), {}).training.learning_rate)
    rate = {name: one.get("training.learning_rate") for name, one in found["candidates"].items()}
    assert rate.pop("one_round") is None and set(rate.values()) <= set(tried)
    rows = (tmp_path / "out" / "tuning" / "results.csv").read_text().splitlines()
    assert len(rows) == 1 + len(rate) * len(tried)
