"""`fedapp advise` as a person sees it: what is run, the words, JSON, going on, bad input."""

import json
import shlex

import numpy as np
import pytest
from PIL import Image

from fedapp.core.errors import ConfigError, DataError
from fedapp.tools import advise as advising
from fedapp.tools.advise import advise, advise_on, as_json, plan, reason
from fedapp.tools.compare.tuning import RATE

CANDIDATES = ["local_only", "one_round", "fedavg", "fedavg_ft", "recommended"]
SEEDS = range(12)
FOUND = {
    "local_only": {k: 0.5 + 0.01 * (k % 3) for k in SEEDS},
    "one_round": {k: 0.6 + 0.01 * (k % 4) for k in SEEDS},
    "fedavg": {k: 0.7 + 0.01 * (k % 4) for k in SEEDS},
    "fedavg_ft": {k: 0.71 + 0.05 * (k % 2) for k in SEEDS},
    "recommended": {k: 0.9 + 0.01 * (k % 3) for k in SEEDS},
}


def test_a_preset_is_run_by_the_sweep_with_the_persons_settings_over_it():
    plain, own, left_out = plan("fashion_mnist", {"data.subset": 500, "rounds.num_rounds": 9}, [])
    assert plain["set"] == {
        "rounds.num_rounds": 9, "rounds.sample_rate": 0.5, "training.local_steps": 25,
        "data.subset": 500,
    }  # fmt: skip
    assert plain["methods"] == CANDIDATES and plain["seeds"] == [0, 1, 2, 3, 4]
    assert own == {"data.subset": 500, "rounds.num_rounds": 9} and left_out == {}


def test_a_folder_of_images_is_dealt_to_simulated_sites(tmp_path):
    with pytest.raises(DataError, match="no images of the form"):
        plan(str(tmp_path), {}, [0])
    odd = tmp_path / "Dr. O'Neil's $scans; new"
    (odd / "a").mkdir(parents=True)
    (odd / "a" / "1.png").touch()
    plain, own, _ = plan(str(odd), {"split.num_clients": 4}, [0])
    assert plain["set"]["data.name"] == "folder" and own["data.root"] == str(odd)
    assert own["split.num_clients"] == 4


@pytest.mark.parametrize(("data", "given", "says"), [
    ("digit_demo", {}, "no such preset, YAML file or folder; did you mean 'digits_demo'"),
    ("digits_demo", {"rounds.rounds": 1}, "and 0 can: .*rounds.num_rounds"),
    ("digits_demo", {"rounds.robust": "mediann"}, "no such rule; did you mean"),
    ("digits_demo", {"confidence": 0.5}, "confidence = 0.5: unknown key; valid: data, method"),
    ("digits_demo", {"method.features": "hog"}, "and 1 can: .*not a setting of local_only"),
    ("fedul_small", {}, "and 0 can: .*local_only cannot learn from bags"),
])  # fmt: skip
def test_bad_input_is_a_line(data, given, says):
    with pytest.raises(ConfigError, match=says) as error:
        plan(data, given, [0])
    assert len(str(error.value).splitlines()) == 1


def test_what_cannot_run_is_left_out_with_the_methods_own_reason():
    plain, _, left_out = plan("digits_demo", {"rounds.robust": "median"}, [0])
    assert plain["methods"] == ["local_only", "fedavg", "fedavg_ft", "recommended"]
    assert "it adds sums of sites, and averages no models" in left_out["one_round"]
    assert set(plain["tune"]["values"]) == set(plain["methods"])


def test_every_candidate_is_tuned_by_the_same_rates_on_a_seed_apart():
    plain, _, _ = plan("digits_demo", {RATE: 0.05}, [0, 1])
    assert "tune" not in plain, "a given rate is that of all"
    plain, _, _ = plan("digits_demo", {}, [0, 4, 1])
    values = dict(plain["tune"]["values"])
    assert plain["tune"]["seeds"] == [5] and values.pop("one_round") == {}, "it trains nothing"
    assert all(of == {RATE: [0.03, 0.01, 0.09]} for of in values.values())


def test_all_is_checked_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(advising, "tune", lambda *_, **__: pytest.fail("it was tuned"))
    with pytest.raises(ConfigError, match="seed = 3: is varied by the cells"):
        advise_on("digits_demo", {"seed": 3}, out=tmp_path)


def test_it_says_what_is_left_out_and_then_tunes_the_others(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(advising, "tune", lambda file, *_, **__: print("tuning", file) or 130)
    given = {"rounds.robust": "median"}
    assert advise_on("digits_demo", given, out=tmp_path) == 130
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("left out: one_round: ") and second == f"tuning {tmp_path}/advise.yaml"
    advise_on("digits_demo", given, out=tmp_path, as_data=True)
    found = capsys.readouterr()
    assert found.out == "" and found.err.startswith("left out: one_round")


def test_the_words_of_a_clear_case():
    first, second = reason(advise(FOUND))
    assert first == (
        "Take: recommended. Better, beyond chance, than local_only, one_round, fedavg_ft."
    )
    assert second == "Nothing else can be more than 1 point better."


def test_the_words_where_nothing_can_be_told_or_nothing_is_needed():
    noisy = {"local_only": FOUND["local_only"], "fedavg": {
        seed: 0.55 + 0.3 * (-1) ** seed for seed in FOUND["local_only"]
    }}  # fmt: skip
    first, second, third, _ = reason(advise(noisy))
    assert first == "Cannot tell: nothing is shown to be better than local_only."
    assert second.startswith("These runs do not tell it from fedavg: differences smaller than")
    assert third == "Highest so far: fedavg."
    equal = {"local_only": FOUND["local_only"], "fedavg": FOUND["local_only"]}
    assert reason(advise(equal))[0] == "Take: local_only."
    one = {name: {0: runs[0]} for name, runs in FOUND.items()}
    [said] = reason(advise(one))
    assert said.startswith("One seed tells nothing about other seeds")


def test_json_holds_all_of_it():
    chosen = {name: {"method.preset": name, RATE: 0.01} for name in FOUND}
    whole = as_json(FOUND, advise(FOUND), chosen, {"x": "it cannot"})
    found = json.loads(json.dumps(whole))
    assert (found["method"], found["clear"]) == ("recommended", True)
    assert list(found["candidates"]) == CANDIDATES and found["left_out"] == {"x": "it cannot"}
    assert found["candidates"]["local_only"]["difference"] == pytest.approx(-0.4)
    assert found["candidates"]["fedavg"][RATE] == 0.01


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
    said = capsys.readouterr().out.splitlines()
    assert any(line.startswith(("Take: ", "Cannot tell: ")) for line in said)
    words = shlex.split(said[-1].removeprefix("In full: "))
    assert words[:2] == ["fedapp", "run"] and f"data.root={tmp_path}/images" in words
    again = advise_on(str(tmp_path / "images"), {**small, "model.width": 4}, **asked, as_data=True)
    found = json.loads(capsys.readouterr().out)
    assert again == 0 and set(found["candidates"]) == set(CANDIDATES)
    rate = {name: one.get(RATE) for name, one in found["candidates"].items()}
    assert rate.pop("one_round") is None and set(rate.values()) <= {0.03, 0.01, 0.09}
    rows = (tmp_path / "out" / "tuning" / "results.csv").read_text().splitlines()
    assert len(rows) == 1 + 3 * len(rate)  # the closed form has no rate, and is not tuned
