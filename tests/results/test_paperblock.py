from pathlib import Path
from typing import Any

import pytest

from fedapp.results.run_end import paper_block

SUMMARY: dict[str, Any] = {
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


PER_SITE = [
    site(0, 0.05, 0.40, 0.71),
    site(1, 0.1, 0.60, 0.60, rounds_skipped=2),
    site(2, 0.5, 0.70, 0.69),
    site(3, 0.9, None, None, test=0),
]


def test_the_whole_block(tmp_path: Path) -> None:
    for name in ("summary.json", "per_site.csv"):
        (tmp_path / name).write_text("")
    text = paper_block(SUMMARY, PER_SITE, tmp_path)
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
    text = paper_block(SUMMARY, MEASURED, Path("/run"))
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
    text = paper_block(SUMMARY, rows, Path("/run"))
    for words in ("95 % interval", "Few test images", "Classes untested"):
        assert (words in text) == shown
    assert len(text.splitlines()) <= 44 and max(map(len, text.splitlines())) <= 100


def test_enough_images_of_every_class_bring_no_warning() -> None:
    rows = [site(0, 0.5, 0.5, 0.5, test=20, classes=4, test_classes=4)]
    text = paper_block(SUMMARY, rows, Path("/run"))
    assert "95 % interval" in text
    assert "Few test images" not in text and "Classes untested" not in text


def test_many_sites_still_fit() -> None:
    sites = [
        site(k, (k % 11) / 10, 0.5, 0.5 + (-1) ** k * (k % 997) / 2000, rounds_skipped=k % 200)
        for k in range(99_000, 99_400)
    ]
    summary = {**SUMMARY, "sites_without_test_images": list(range(99_000, 99_100))}
    text = paper_block(summary, sites, Path("/run"))
    lines = text.splitlines()
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 100
    assert text.isascii()
    assert "and 96 more" in text


def test_movers_are_the_extremes_in_order() -> None:
    changes = [0.0, 0.1, -0.2, 0.3, 0.1, -0.1, 0.2, -0.3, -0.4]
    text = paper_block(
        SUMMARY, [site(k, 0.5, 0.5, 0.5 + c) for k, c in enumerate(changes)], Path("/r")
    )
    gained, lost = text.split("gained most")[1].splitlines()[:2]
    assert (
        gained.strip() == "site 3 +30.0 (mu 0.50)  site 6 +20.0 (mu 0.50)  site 1 +10.0 (mu 0.50)"
    )
    assert "site 8 -40.0 (mu 0.50)  site 7 -30.0 (mu 0.50)  site 2 -20.0 (mu 0.50)" in lost


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
        text = paper_block(summary, per_site, Path("/run"))
        assert "None" not in text
        assert "nan" not in text
        assert "gained most  none" in text
        assert len(text.splitlines()) <= 30


def test_a_method_without_a_bound() -> None:
    text = paper_block({**SUMMARY, "cost_bound_models": None}, PER_SITE, Path("/run"))
    assert "Eq. 2" not in text, "a method that does not search has no cost of a search either"
    assert "saves" not in paper_block({**SUMMARY, "cost_greedy_models": 16.0}, PER_SITE, Path("/r"))
    zero = {"cost_bound_models": 0.0, "models_sent": 0, "models_up": 0}
    assert "0 models (Eq. 28)\n" in paper_block({**SUMMARY, **zero}, PER_SITE, Path("/run"))


def test_several_answers_of_the_sites_are_shown_and_a_single_one_is_not() -> None:
    answers = {
        name: {"final": final, "best_by_validation": 0.5, "best_by_validation_round": 3}
        for name, final in (("common", 0.8), ("tuned", 0.75), ("alone", None))
    }
    text = paper_block({**SUMMARY, "answers": answers}, PER_SITE, Path("run"))
    shown = {line[:42].strip(): line[42:].split() for line in text.splitlines()}
    assert shown["the server's model"] == ["80.0", "50.0"]
    assert shown["their own after local training"] == ["75.0", "50.0"]
    assert shown["their own, trained alone"] == ["-", "50.0"]
    assert "could answer" not in paper_block({**SUMMARY, "answers": {}}, PER_SITE, Path("run"))
