"""What the screen shows at the end of a run."""

import re
from pathlib import Path
from typing import Any

import pytest

from fedapp.evaluation.verdict import Pairs, joining_lines
from fedapp.methods.closed_form.one_round import OneRound
from fedapp.protocol.messages import ALL_SITES
from fedapp.reports.run_end import end_block, site_joining

SUMMARY: dict[str, Any] = {
    "preset": "three_hospitals",
    "method": "prior_shift",
    "sites": 3,
    "rounds": 20,
    "seed": 0,
    "wall_seconds": 102.4,
    "mean_test_accuracy": {"final": 0.75, "best_by_validation": 0.8, "best_by_validation_round": 7},
    "answers": {
        "common": {"final": 0.7, "best_by_validation": 0.7, "best_by_validation_round": 3},
        "alone": {"final": 0.6, "best_by_validation": 0.6, "best_by_validation_round": 3},
    },
    "pseudo_label_error": 0.123,
    "models_sent": 300,
    "models_up": 69,
    "bytes_up": 2_000_000,
    "bytes_down": 12_345_678,
    "bytes_evaluation": 4_000,
    "sites_without_test_images": [2],
    "lone_model": "a network",
}


def site(number: int, mu: float, start: float | None, end: float | None, **more: Any) -> Any:
    return {"site": number, "mu": mu, "warmup_accuracy": start, "final_accuracy": end, **more}


HOSPITALS = [
    site(0, 0.5, 0.5, 0.6, name="north", train=100, labelled=50, test=10, alone_accuracy=0.8,
         common_accuracy=0.5, by_validation_accuracy=0.7, classes=3, test_classes=2),
    site(1, 0.05, 0.25, 0.75, name="south", train=200, labelled=10, test=40, alone_accuracy=0.5,
         common_accuracy=0.7, by_validation_accuracy=0.8, classes=3, test_classes=3,
         **Pairs(40, 30, 20, 40, 13, 3).numbers),
    site(2, 0.9, None, None, name="west", train=10, labelled=9, test=0, classes=3, test_classes=0),
]  # fmt: skip


def test_the_whole_block_of_few_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 10 and 40 images: 5 + 10 right, 6 + 30, 7 + 32, 5 + 28, 8 + 20; Wilson, z = 1.96."""
    monkeypatch.setenv("FEDAPP_OUT", str(tmp_path))
    run = tmp_path / "trial"
    (run / "models").mkdir(parents=True)
    expected = f"""\
three_hospitals: prior_shift, 3 sites, 20 rounds, seed 0, 1 min 42 s

Right answers on the sites' own test images        right / of            %  sites' mean
  after the warm-up                                   15 / 50         30.0         37.5
  after round 20, the last                            36 / 50         72.0         75.0
  after round 7, best on validation                   39 / 50         78.0         80.0
  the server's average of all sites, at the end       33 / 50         66.0         70.0
  each site's model trained alone, at the end         28 / 50         56.0         60.0

Sites by number of labels   labelled  warm-up, %    alone, %     last, %   right / of  95 % by image
  west                        9 / 10           -           -           -  no test images
  south                     10 / 200        25.0        50.0        75.0      30 / 40   59.8 to 85.8
  north                     50 / 100        50.0        80.0        60.0       6 / 10   31.3 to 83.2

Joining paid, beyond chance: 30 of 40 test images right together, 20 alone (a network): +25.0 points
  (95 % interval +5.4 to +42.3).
Gained beyond chance: 1 of 1 site (south).
Lost beyond chance: 0 of 1 site.
Cannot be told: 0 of 1 site.
Few test images     sites north (10): under 20, mostly chance
Classes untested    at sites north: 1 of 3
Wrong pseudo-labels 12.3 % in the last round that could count them
Sent                12.3 MB to sites, 2.0 MB to the server; 4.0 kB more to measure
Privacy             no epsilon, no masks: the server reads what each site sends

Files in {run}
Pictures: fedapp report trial   the sites' models: fedapp site trial"""
    assert end_block(SUMMARY, HOSPITALS, run) == expected


def test_sites_are_by_number_of_labels_and_one_answer_for_all_is_named() -> None:
    """A tenth of 30 are fewer labels than a twentieth of 200; a class may be called 7."""
    small = site(3, 0.1, None, 0.9, name="mill", train=30, labelled=3, test=20, one_answer=7)
    text = end_block(SUMMARY, [*HOSPITALS, small], Path("/r"))
    table = text.split("Sites by number of labels")[1].splitlines()
    assert [line.split()[0] for line in table[1:5]] == ["mill", "west", "south", "north"]
    assert (
        "Do not use to decide: 1 of 3 sites (mill: '7'): nearly all answers are one class, and one "
        "answer for all would be right at least as often."
    ) in " ".join(text.split())
    assert "to decide" not in end_block(SUMMARY, HOSPITALS, Path("/r"))


@pytest.mark.parametrize(("alone", "pairs", "line"), [
    ([], (40, 20, 36, 40, 1, 17),
     "0 / 1 sites, chosen on validation images; lost on test images: south"),
    (["1"], (40, 20, 36, 40, 1, 17),
     "1 / 1 sites, chosen on validation images: south, what they trained alone"),
    ([], (40, 30, 20, 40, 13, 3), "0 / 1 sites, chosen on validation images"),
])  # fmt: skip
def test_what_sites_keep_is_chosen_on_other_images_than_those_of_the_verdict(
    alone, pairs, line
) -> None:
    kept = {"mean": 0.7, "told": 1, "alone": dict.fromkeys(alone, 3)}
    rows = [HOSPITALS[0], {**HOSPITALS[1], **Pairs(*pairs).numbers}]
    text = end_block({**SUMMARY, "kept": kept}, rows, Path("/r"))
    assert f"Keep their own      {line}" in text.splitlines()


@pytest.mark.parametrize(("before", "line"), [
    (0.76, "Training added -1.0 points to the closed form: take method.preset=one_round"),
    (0.745, "Training added +0.5 points to the closed form: take method.preset=one_round"),
    (0.72, "Training added +3.0 points to the closed form"),
])  # fmt: skip
def test_the_last_line_says_what_training_added_to_the_closed_form(before, line) -> None:
    """The last round has 75 %. A run without the closed form has no such line."""
    answers = {**SUMMARY["answers"], "one_round": {"final": before}}
    text = end_block({**SUMMARY, "answers": answers}, HOSPITALS, Path("/r"))
    assert text.splitlines()[-1] == line
    assert "Training" not in end_block(SUMMARY, HOSPITALS, Path("/r"))


def test_round_0_has_the_name_that_its_method_gives_it(tmp_path: Path) -> None:
    """As long as "warm-up", so that all else stays in its column."""
    before = end_block(SUMMARY, HOSPITALS, tmp_path)
    summary = {**SUMMARY, "begins": "sol-ved"}
    assert end_block(summary, HOSPITALS, tmp_path) == before.replace("warm-up", "sol-ved")
    solved = end_block({**SUMMARY, "begins": OneRound.begins}, HOSPITALS, tmp_path)
    assert "  after the solution  " in solved and "warm-up" not in solved


def test_answers_that_repeat_the_last_rounds_stand_once_but_those_made_alone_stay() -> None:
    """As of a method that trains nothing. That joining changed nothing must be seen."""
    alike = dict.fromkeys(("warmup_accuracy", "common_accuracy", "alone_accuracy"), 0.75)
    rows = [{**row, **alike, "final_accuracy": 0.75} for row in HOSPITALS[:2]]
    text = end_block(SUMMARY, rows, Path("/r"))
    assert "after the warm-up" not in text and "warm-up, %" not in text
    assert "the server's average" not in text
    assert "each site's model trained alone" in text and "alone, %" in text
    rows[1]["warmup_accuracy"] = 0.5
    assert "after the warm-up" in end_block(SUMMARY, rows, Path("/r"))


def test_the_last_round_that_is_the_best_stands_once() -> None:
    mean = {**SUMMARY["mean_test_accuracy"], "best_by_validation_round": 20}
    text = end_block({**SUMMARY, "mean_test_accuracy": mean}, HOSPITALS, Path("/r"))
    assert "  after round 20, the last, best on validation " in text
    assert text.count("after round") == 1


def many(number: int, first: int = 0) -> list[Any]:
    """Sites of 100 test images; the k-th gains k - 5 images, modulo 11."""
    return [
        site(
            k, (k - first) / number, 0.5, 0.5 + (k % 11 - 5) / 100, test=100, train=100, labelled=k
        )
        for k in range(first, first + number)
    ]


def test_many_sites_are_grouped_by_their_labels() -> None:
    text = end_block(SUMMARY, many(20), Path("/r"))
    groups = re.findall(r"^  (\w.* labelled) +(\d+) +([\d.]+) +([\d.]+) +(.*)$", text, re.MULTILINE)
    assert [(label, sites) for label, sites, *_ in groups] == [
        ("under 10 % labelled", "2"),
        ("10 to 50 % labelled", "9"),
        ("over 50 % labelled", "9"),
    ]
    assert groups[0][2:] == ("50.0", "45.5", "91 / 200"), "sites 0 and 1: 45 and 46 of 100"
    assert re.search(r"the tenth of sites that does worst +2 +50.0 +45.0\n", text)


def test_a_site_without_a_model_trained_alone_counts_nowhere() -> None:
    """8 of 10, the one site that has such a model; the other has a sentence of its own."""
    south = {**HOSPITALS[1], "alone_accuracy": None, "labelled": 0, "pairs_images": None}
    alone = {**SUMMARY["answers"]["alone"], "final": (0.8 + 1 / 3) / 2, "sites_without": 1}
    north = {**HOSPITALS[0], **Pairs(10, 6, 8, 10, 0, 2).numbers}
    text = end_block({**SUMMARY, "answers": {"alone": alone}}, [north, south], Path("/r"))
    assert re.search(r"each site trained alone, without 1 that cannot +8 / 10 +80.0 +80.0\n", text)
    assert "nothing to compare: south is right on 30 of 40 together." in text


def test_a_run_ends_with_the_lines_that_all_places_have() -> None:
    """Also where no site can be compared, and where masked sums name no site."""
    rows = [{**row, **Pairs(100, 90, 70, 100, 26, 6).numbers} for row in many(12)]
    lines = joining_lines([site_joining(row) for row in rows], "a network")
    said = " ".join(end_block(SUMMARY, rows, Path("/r")).split())
    assert all(line in said for line in lines) and len(lines) == 4
    assert "Gained beyond chance: 12 of 12 sites (site 0, site 1, " in said and "and 4 more" in said
    assert (
        "Cannot tell whether joining paid: the sites did not measure both a model that they "
        in (end_block(SUMMARY, many(2), Path("/r")))
    )
    summed = end_block(SUMMARY, [{**rows[0], "site": -4}], Path("/r"))
    assert "Joining paid, beyond chance: 90 of 100" in summed and "Gained" not in summed
    before = {key: value for key, value in SUMMARY.items() if key != "lone_model"}
    assert "oining" not in end_block(before, rows, Path("/r")), "its pairs were not counted"


@pytest.mark.parametrize("number", [1, 9, 10, 11, 400])
def test_it_fits_a_screen(number: int) -> None:
    rows = [
        {**row, "rounds_skipped": row["site"] % 7, "alone_accuracy": 0.5, "common_accuracy": 0.5,
         "classes": 9, "test_classes": 3, "test": 19, **Pairs(19, 9, 9, 19, 5, 5).numbers}
        for row in many(number, first=0 if number <= 10 else 99_000)
    ]  # fmt: skip
    without = {"sites_without_test_images": list(range(99_000, 99_100))}
    text = end_block({**SUMMARY, **without}, rows, Path("/run"))
    lines = text.splitlines()
    assert len(lines) <= 37 and max(map(len, lines)) <= 100 and text.isascii()
    assert ("and 96 more" in text) == (number > 10)


@pytest.mark.parametrize(
    "per_site",
    [[], [site(0, 0.0, None, None)], [site(0, 1.0, 0.5, 0.5)], [{"site": 0, "mu": None}]],
)
@pytest.mark.parametrize("rounds", [0, 1])
def test_nothing_known(per_site: list[dict[str, Any]], rounds: int) -> None:
    bare = {key: SUMMARY[key] for key in ("preset", "method", "sites", "seed")}
    bare["rounds"] = rounds
    nothing = {**dict.fromkeys(SUMMARY), **bare}
    for summary in (bare, nothing, {**SUMMARY, "mean_test_accuracy": {"best": None}}):
        for rows in (per_site, per_site * 11):
            text = end_block(summary, rows, Path("/run"))
            assert "None" not in text and "nan" not in text and len(text.splitlines()) <= 30


def test_the_end_says_how_many_of_the_sites_took_part(tmp_path: Path) -> None:
    """`flwr run` of ten sites with two nodes said "2 sites" at its end and no more."""
    summary = {**SUMMARY, "sites_expected": 10}
    block = end_block(summary, HOSPITALS, tmp_path)
    assert block.startswith("three_hospitals: prior_shift, 3 of 10 sites, 20 rounds")
    assert "Took part           3 of 10 sites; 7 never came, and no number here is of them" in block
    assert "never came" not in end_block({**SUMMARY, "sites_expected": 3}, HOSPITALS, tmp_path)
    assert block.endswith(f"\nPictures: fedapp report {tmp_path}"), "by its folder; no models there"


def test_findings_have_lines_that_with_the_lowest_sensitivity_first() -> None:
    rows = [
        {"class": "mass", "read": 50, "images": 20, "sensitivity": 0.9, "specificity": 0.8},
        {"class": "edema", "read": 40, "images": 10, "sensitivity": 0.5, "specificity": None},
        {"class": "hernia", "read": 30, "images": 1, "sensitivity": None, "specificity": None},
    ]
    lines = end_block({**SUMMARY, "by_class": rows}, HOSPITALS, Path("/r")).splitlines()
    at = next(k for k, line in enumerate(lines) if line.startswith("By finding"))
    assert [line.split() for line in lines[at + 1 : at + 3]] == [
        ["edema", "10", "/", "40", "50.0", "-"], ["mass", "20", "/", "50", "90.0", "80.0"],
    ]  # fmt: skip
    assert lines[at + 3] == "  too few images with it, cannot be said: hernia (1)"


def test_skipped_sites_come_by_how_often_they_were() -> None:
    rows = [{**row, "rounds_skipped": n} for row, n in zip(HOSPITALS, (1, 3, 0), strict=True)]
    assert "Skipped (rounds)    sites 1 (3), 0 (1)" in end_block(SUMMARY, rows, Path("/r"))


@pytest.mark.parametrize(("changed", "masked", "said"), [
    ({}, False, "no epsilon, no masks: the server reads what each site sends"),
    ({}, True, "no epsilon, masked sums"),
    ({"epsilon": 3.0}, False, "epsilon 3, no masks: the server reads what each site sends"),
    ({"epsilon": 0.5}, True, "epsilon 0.5, masked sums"),
])  # fmt: skip
def test_a_run_ends_with_how_far_the_server_could_read(changed, masked, said) -> None:
    rows = [{**HOSPITALS[0], "site": ALL_SITES}] if masked else HOSPITALS
    text = end_block({**SUMMARY, **changed}, rows, Path("/r"))
    assert f"Privacy             {said}\n" in text
