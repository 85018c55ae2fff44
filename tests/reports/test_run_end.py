"""The end of a run: in plain words, without letters of the paper; and in the paper's terms."""

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace as NS
from typing import Any

import pytest

from fedapp.evaluation.verdict import verdict_of_counts
from fedapp.methods.closed_form.one_round import OneRound
from fedapp.reports.run_classes import joining
from fedapp.reports.run_end import end_block, paper_block

Block = Callable[[dict[str, Any], list[Any], Path], str]

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
}

PAPER: dict[str, Any] = {
    "preset": "digits_demo",
    "method": "um_pfssl",
    "sites": 4,
    "rounds": 20,
    "seed": 0,
    "wall_seconds": 102.4,
    "mean_test_accuracy": {
        "best": 0.82,
        "best_round": 17,
        "final": 0.8125,
        "best_by_validation": 0.815,
        "best_by_validation_round": 15,
    },
    "std_test_accuracy": 0.04,
    "worst_decile_accuracy": 0.7,
    "best_std_test_accuracy": 0.03,
    "best_worst_decile_accuracy": 0.71,
    "pseudo_label_error": 0.123,
    "models_sent": 300,
    "models_up": 69,
    "bytes_up": 2_000_000,
    "bytes_down": 12_345_678,
    "cost_bound_models": 615.0,
    "cost_greedy_models": 20_000.0,
    "sites_without_test_images": [3],
}


def site(number: int, mu: float, start: float | None, end: float | None, **more: Any) -> Any:
    return {"site": number, "mu": mu, "warmup_accuracy": start, "final_accuracy": end, **more}


HOSPITALS = [
    site(0, 0.5, 0.5, 0.6, name="north", train=100, labelled=50, test=10, alone_accuracy=0.8,
         common_accuracy=0.5, by_validation_accuracy=0.7, classes=3, test_classes=2),
    site(1, 0.05, 0.25, 0.75, name="south", train=200, labelled=10, test=40, alone_accuracy=0.5,
         common_accuracy=0.7, by_validation_accuracy=0.8, classes=3, test_classes=3),
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

By site, few labels first   labelled  warm-up, %    alone, %     last, %   right / of  95 % by image
  south                     10 / 200        25.0        50.0        75.0      30 / 40   59.8 to 85.8
  north                     50 / 100        50.0        80.0        60.0       6 / 10   31.3 to 83.2
  west                        9 / 10           -           -           -  no test images

Worse than alone    1 of 2 sites, in images: north -2 of 10
Few test images     sites north (10): under 20, mostly chance
Classes untested    at sites north: 1 of 3
Wrong pseudo-labels 12.3 % in the last round that could count them
Sent                12.3 MB to sites, 2.0 MB to the server; 4.0 kB more to measure

Files in {run}
Pictures: fedapp report trial   the sites' models: fedapp site trial"""
    assert end_block(SUMMARY, HOSPITALS, run) == expected


def test_round_0_has_the_name_that_its_method_gives_it(tmp_path: Path) -> None:
    """As long as "warm-up", so that all else stays in its column."""
    before = end_block(SUMMARY, HOSPITALS, tmp_path)
    summary = {**SUMMARY, "begins": "sol-ved"}
    assert end_block(summary, HOSPITALS, tmp_path) == before.replace("warm-up", "sol-ved")
    solved = end_block({**SUMMARY, "begins": OneRound.begins}, HOSPITALS, tmp_path)
    assert "  after the solution  " in solved and "warm-up" not in solved


def test_a_run_elsewhere_is_named_by_its_folder_and_a_servers_holds_no_models(
    tmp_path: Path,
) -> None:
    text = end_block(SUMMARY, HOSPITALS, tmp_path)
    assert text.endswith(f"\nPictures: fedapp report {tmp_path}")


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
    assert "Better than warm-up 8 of 20 sites, in images: 10 +5 of 100, 9 +4 of 100, 8 +3" in text
    assert "Worse than warm-up  10 of 20 sites, in images: 11 -5 of 100, 0 -5 of 100" in text


def test_a_site_without_a_model_trained_alone_counts_with_a_guess() -> None:
    """8 of 10 and, of three classes, 13 of 40 guessed: 21 of 50; the mean is the summary's."""
    rows = [HOSPITALS[0], {**HOSPITALS[1], "alone_accuracy": None}, HOSPITALS[2]]
    alone = {**SUMMARY["answers"]["alone"], "final": (0.8 + 1 / 3) / 2, "sites_without": 1}
    text = end_block({**SUMMARY, "answers": {"alone": alone}}, rows, Path("/r"))
    assert re.search(r"each site trained alone; 1 without: guesses +21 / 50 +42.0 +56.7\n", text)


def test_verdicts_are_counted_in_the_words_of_a_verdict() -> None:
    counts = {"paid": 1, "harmed": 0, "same": 0, "unknown": 2}
    kept = {"mean": 0.8, "told": 0, "alone": [], "verdicts": counts}
    said = end_block({**SUMMARY, "kept": kept}, HOSPITALS, Path("trial"))
    assert "paid at 1 sites, did harm at 0, changed little at 0; cannot tell at 2\n" in said
    every: Any = [word for word, count in counts.items() for _ in range(count)]
    sites = [NS(standing=NS(verdict=NS(said=word))) for word in every]
    run: Any = NS(sites=sites)
    assert joining(run).endswith("did harm at 0 and changed little at 0; cannot tell at 2.")
    run.sites = sites[1:]
    for line in (joining(run), verdict_of_counts(1, 0, 2).line):
        assert line.startswith("Cannot tell ")


def test_nobody_is_worse() -> None:
    rows = [site(0, 0.5, 0.5, 0.5, test=10), site(1, 0.5, 0.5, 0.6, test=10)]
    text = end_block({**SUMMARY, "answers": {}}, rows, Path("/r"))
    assert "Worse than warm-up  none of 2 sites\n" in text
    assert "alone" not in text and "average" not in text


def test_no_letter_of_the_paper_is_left() -> None:
    for rows in (HOSPITALS, many(40)):
        summary = {**SUMMARY, "cost_bound_models": 615.0, "cost_greedy_models": 20_000.0}
        text = end_block(summary, rows, Path("/r"))
        assert not re.search(r"\b(mu|std|decile|Eq\.|bound)\b", text)


@pytest.mark.parametrize("words", [end_block, paper_block])
@pytest.mark.parametrize("number", [1, 9, 10, 11, 400])
def test_it_fits_a_screen(words: Block, number: int) -> None:
    """In the paper's terms few sites take 14 lines more: they stand one by one too."""
    rows = [
        {**row, "rounds_skipped": row["site"] % 7, "alone_accuracy": 0.5, "common_accuracy": 0.5,
         "classes": 9, "test_classes": 3, "test": 19}
        for row in many(number, first=0 if number <= 10 else 99_000)
    ]  # fmt: skip
    without = {"sites_without_test_images": list(range(99_000, 99_100))}
    for summary in (SUMMARY, PAPER):
        text = words({**summary, **without}, rows, Path("/run"))
        lines = text.splitlines()
        assert len(lines) <= (44 if words is paper_block and number <= 10 else 30)
        assert max(map(len, lines)) <= 100
        assert text.isascii()
        assert ("and 96 more" in text) == (words is paper_block or number > 10)


@pytest.mark.parametrize("words", [end_block, paper_block])
@pytest.mark.parametrize(
    "per_site",
    [[], [site(0, 0.0, None, None)], [site(0, 1.0, 0.5, 0.5)], [{"site": 0, "mu": None}]],
)
@pytest.mark.parametrize("rounds", [0, 1])
def test_nothing_known(words: Block, per_site: list[dict[str, Any]], rounds: int) -> None:
    bare = {key: SUMMARY[key] for key in ("preset", "method", "sites", "seed")}
    bare["rounds"] = rounds
    nothing = {**dict.fromkeys({**SUMMARY, **PAPER}), **bare}
    for summary in (bare, nothing, {**PAPER, "mean_test_accuracy": {"best": None}}):
        for rows in (per_site, per_site * 11):
            text = words(summary, rows, Path("/run"))
            assert "None" not in text
            assert "nan" not in text
            assert words is paper_block or len(text.splitlines()) <= 30


def test_the_end_says_how_many_of_the_sites_took_part(tmp_path: Path) -> None:
    """`flwr run` of ten sites with two nodes said "2 sites" at its end and no more."""
    summary = {**SUMMARY, "sites_expected": 10}
    block = end_block(summary, HOSPITALS, tmp_path)
    assert block.startswith("three_hospitals: prior_shift, 3 of 10 sites, 20 rounds")
    assert "Took part           3 of 10 sites; 7 never came, and no number here is of them" in block
    assert "never came" not in end_block({**SUMMARY, "sites_expected": 3}, HOSPITALS, tmp_path)
    assert "of 10 sites" in paper_block(summary, HOSPITALS, tmp_path)
    assert "7 never came" in paper_block(summary, HOSPITALS, tmp_path)


PER_SITE = [
    site(0, 0.05, 0.40, 0.71),
    site(1, 0.1, 0.60, 0.60, rounds_skipped=2),
    site(2, 0.5, 0.70, 0.69),
    site(3, 0.9, None, None, test=0),
]


def test_the_whole_block_in_the_papers_terms(tmp_path: Path) -> None:
    for name in ("summary.json", "per_site.csv"):
        (tmp_path / name).write_text("")
    text = paper_block(PAPER, PER_SITE, tmp_path)
    expected = f"""\
digits_demo: um_pfssl, 4 sites, 20 rounds, seed 0, 1 min 42 s

Accuracy on the sites' own test images, %           mean           std  worst decile
  after warm-up                                     56.7          12.5          40.0
  final, round 20                                   81.2           4.0          70.0
  best, round 17                                    82.0           3.0          71.0
  best by validation, round 15                      81.5             -             -

By share of labels, %                              sites after warm-up         final        change
  mu < 0.1                                             1          40.0          71.0         +31.0
  0.1 <= mu <= 0.5                                     2          65.0          64.5          -0.5
  mu > 0.5                                             1             -             -             -

Against the site's own warm-up model, points
  gained most  site 0 +31.0 (mu 0.05)
  lost most    site 2 -1.0 (mu 0.50)

Pseudo-label error  12.3 %, last measured
Models sent         300 to sites, 69 to the server
  paper's bound     615 models (Eq. 28); sent: 60.0 % of it
  greedy search     20,000 models (Eq. 27); the bound saves 19,385
Bytes sent          12.3 MB to sites, 2.0 MB to the server

No test images      sites 3
Skipped (rounds)    sites 1 (2)

Files in {tmp_path}
  summary.json per_site.csv"""
    assert text == expected


MEASURED = [
    site(0, 0.05, 0.40, 0.9, name="north", test=10, classes=3, test_classes=2),
    site(1, 0.1, 0.60, 0.0, name="south", test=30, classes=3, test_classes=3),
    site(2, 0.5, 0.70, 1.0, test=19, classes=3, test_classes=1),
    site(3, 0.9, None, None, test=0, classes=3, test_classes=0),
]


def test_few_sites_are_shown_with_counts_and_intervals() -> None:
    """9 of 10, 0 of 30 and 19 of 19 by Wilson's formula: z = 1.96, z^2 = 3.8415."""
    text = paper_block(PAPER, MEASURED, Path("/run"))
    expected = """\
By site, final                                right / of             % 95 % interval
  north                                           9 / 10          90.0  59.6 to 98.2
  south                                           0 / 30           0.0   0.0 to 11.4
  site 2                                         19 / 19         100.0 83.2 to 100.0

By share"""
    assert expected in text
    assert "Few test images     sites north (10), 2 (19): under 20, mostly chance\n" in text
    assert "Classes untested    at sites north: 1 of 3, 2: 2 of 3\n" in text
    assert "No test images      sites 3\n" in text


@pytest.mark.parametrize(("count", "shown"), [(1, True), (10, True), (11, False)])
def test_intervals_are_for_few_sites(count: int, shown: bool) -> None:
    rows = [site(k, 0.5, 0.5, 0.5, test=10, classes=4, test_classes=3) for k in range(count)]
    text = paper_block(PAPER, rows, Path("/run"))
    for words in ("95 % interval", "Few test images", "Classes untested"):
        assert (words in text) == shown
    assert len(text.splitlines()) <= 44 and max(map(len, text.splitlines())) <= 100


def test_enough_images_of_every_class_bring_no_warning() -> None:
    rows = [site(0, 0.5, 0.5, 0.5, test=20, classes=4, test_classes=4)]
    text = paper_block(PAPER, rows, Path("/run"))
    assert "95 % interval" in text
    assert "Few test images" not in text and "Classes untested" not in text


def test_movers_are_the_extremes_in_order() -> None:
    changes = [0.0, 0.1, -0.2, 0.3, 0.1, -0.1, 0.2, -0.3, -0.4]
    text = paper_block(
        PAPER, [site(k, 0.5, 0.5, 0.5 + c) for k, c in enumerate(changes)], Path("/r")
    )
    gained, lost = text.split("gained most")[1].splitlines()[:2]
    assert (
        gained.strip() == "site 3 +30.0 (mu 0.50)  site 6 +20.0 (mu 0.50)  site 1 +10.0 (mu 0.50)"
    )
    assert "site 8 -40.0 (mu 0.50)  site 7 -30.0 (mu 0.50)  site 2 -20.0 (mu 0.50)" in lost
