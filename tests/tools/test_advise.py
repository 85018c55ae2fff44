"""`fedapp advise`: what is run, words, JSON, bad input; and the rule, by hand and at extremes."""

import json
import shlex

import numpy as np
import pytest
from PIL import Image

from fedapp.core.errors import ConfigError, DataError
from fedapp.core.settings import DataSettings
from fedapp.reports.statistics import paired_difference
from fedapp.tools import advise as advising
from fedapp.tools.advise import (
    MARGIN,
    advise,
    advise_on,
    as_json,
    cheaper,
    plan,
    reason,
    some_images,
)
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


def test_a_csv_file_is_to_become_vectors_first(tmp_path):
    (tmp_path / "raw.csv").write_text("age,sex\n63,1\n")
    with pytest.raises(ConfigError, match=r"a CSV file: of a table make a folder of vectors .*"
                       r"docs/TUTORIAL_TABLES.md"):  # fmt: skip
        plan(str(tmp_path / "raw.csv"), {}, [0])


@pytest.mark.parametrize(("data", "given", "says"), [
    ("digit_demo", {}, "no such preset, YAML file or folder; did you mean 'digits_demo'"),
    ("digits_demo", {"rounds.rounds": 1}, "only 0 can run: .*rounds.num_rounds"),
    ("digits_demo", {"rounds.robust": "mediann"}, "no such rule; did you mean"),
    ("digits_demo", {"confidence": 0.5}, "confidence = 0.5: unknown key; valid: data, method"),
    ("digits_demo", {"method.features": "hog"}, "only 1 can run: .*not a setting of local_only"),
    ("fedul_small", {}, "only 0 can run: .*local_only cannot learn from bags"),
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


def test_of_two_that_are_level_the_one_that_trains_nothing_is_taken():
    """Differences of 0, 2, 0, 2 points: the interval has 0. Of 2.0 and 2.1 points: it has not."""
    plain = {seed: 0.8 for seed in range(4)}
    level = {seed: 0.8 + 0.02 * (seed % 2) for seed in range(4)}
    [line] = cheaper({"one_round": plain, "recommended": level})
    assert "(+1.0 points)" in line and line.endswith("of the two take one_round.")
    better = {seed: 0.82 + 0.001 * (seed % 2) for seed in range(4)}
    assert cheaper({"one_round": plain, "recommended": better}) == []
    assert (
        cheaper({"one_round": plain})
        == []
        == cheaper({"one_round": {0: 0.8}, "recommended": {0: 0.9}})
    )


def test_it_looks_at_some_images_of_a_folder_and_else_asks_the_settings(tmp_path):
    for k in range(41):
        (tmp_path / str(k % 2)).mkdir(exist_ok=True)
        Image.new("RGB", (70, 40 + k)).save(tmp_path / str(k % 2) / f"{k}.png")
    found = some_images(DataSettings(name="folder", root=str(tmp_path)))
    assert 20 <= len(found) <= 21 and not any(grey for _, grey in found)
    assert max(side for side, _ in found) == 70
    assert some_images(DataSettings(name="cifar10")) == [(32, False)]
    assert some_images(DataSettings(name="fashion_mnist")) == []


def test_the_first_line_for_photographs_is_the_encoder(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(advising, "tune", lambda *_, **__: 130)
    for more, hinted in ({}, True), ({"model.name": "encoder", "model.body": "lite0"}, False):
        advise_on("cifar10", {"data.root": str(tmp_path), **more}, out=tmp_path)
        assert capsys.readouterr().out.startswith("images in colour: try ") is hinted


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


SITES = range(12)
ALONE = {k: 0.5 + 0.01 * (k % 3) for k in SITES}


def more(by, noise=0.0):
    """Accuracies above training alone, with a noise that cancels over the sites."""
    return {k: value + by + noise * (-1) ** k for k, value in ALONE.items()}


def test_by_hand():
    """Two candidates, differences 0.10, 0.12, 0.08: mean 0.1, sd 0.02, t(0.975, 2) = 4.3027."""
    found = advise({"alone": {0: 0.5, 1: 0.5, 2: 0.5}, "average": {0: 0.6, 1: 0.62, 2: 0.58}})
    assert (found.method, found.over, found.rivals) == ("average", ("alone",), ())
    less = found.differences["alone"]
    assert less.value == pytest.approx(-0.1)
    assert less.high == pytest.approx(-0.1 + 4.3027 * 0.02 / 3**0.5, abs=1e-5)
    assert found.clear and found.highest == "average" and found.reach is None


def test_of_two_candidates_it_is_the_paired_t_test():
    other = more(0.03, 0.02)
    found, test = advise({"alone": ALONE, "other": other}), paired_difference(other, ALONE)
    assert (found.method == "other") == (test.low > 0)


def test_the_simplest_stands_where_nothing_is_better_by_a_point():
    found = advise({"alone": ALONE, "average": more(0.0, 0.004), "tuned": more(-0.1, 0.01)})
    assert (found.method, found.over, found.clear) == ("alone", (), True)


def test_what_is_better_on_average_but_not_beyond_chance_is_a_rival():
    found = advise({"alone": ALONE, "average": more(0.04, 0.2)})
    assert (found.method, found.rivals, found.highest) == ("alone", ("average",), "average")
    assert found.reach == pytest.approx(
        (found.differences["average"].high - found.differences["average"].low) / 2
    )


def test_a_step_that_is_not_shown_does_not_hide_a_later_one_that_is():
    found = advise({"alone": ALONE, "average": more(0.02, 0.2), "best": more(0.2, 0.01)})
    assert (found.method, found.over) == ("best", ("alone",))


def test_units_that_one_candidate_lacks_and_a_shift_of_all_change_nothing():
    candidates = {"alone": ALONE, "average": more(0.05, 0.03), "best": more(0.06, 0.03)}
    shifted = {name: {k: a + 0.1 for k, a in units.items()} for name, units in candidates.items()}
    before, after = advise(candidates), advise({**shifted, "alone": {**shifted["alone"], 99: 0.0}})
    assert (before.method, before.over, before.rivals) == (after.method, after.over, after.rivals)


def test_a_reach_above_100_points_is_not_said_as_points():
    found = advise({"alone": {0: 0.5, 1: 0.6}, "average": {0: 0.9, 1: 0.7}})
    assert found.reach > 1
    assert "with so few seeds no difference can be seen" in " ".join(reason(found))


def test_at_the_extremes():
    assert advise({}) is None and advise({"alone": ALONE}) is None
    assert advise({"alone": {0: 0.5}, "average": {1: 0.5}}) is None
    one = advise({"alone": {0: 0.5}, "average": {0: 0.9}})
    assert (one.method, one.rivals, one.highest, one.reach) == (
        "alone",
        ("average",),
        "average",
        None,
    )
    same = advise({"alone": ALONE, "twin": dict(ALONE)})
    assert (same.method, same.clear) == ("alone", True)
    constant = advise({"alone": {0: 0.5, 1: 0.5}, "other": {0: 0.75, 1: 0.75}})
    assert constant.rivals == ("other",), "no spread, no interval, so nothing is shown"


def test_without_a_difference_it_leaves_the_simplest_in_fewer_than_one_in_ten():
    """400 draws of four equal candidates over 30 sites, at 5 % together: more than 40 are chance
    of 1e-4 at most."""
    draw = np.random.default_rng(0)
    left = 0
    for _ in range(400):
        noise = draw.normal(0.8, 0.05, (4, 30))
        found = advise({str(c): dict(enumerate(row)) for c, row in enumerate(noise)})
        left += found.method != "0"
    assert left <= 40
    assert MARGIN == 0.01
