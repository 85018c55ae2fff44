"""What a comparison can tell: by hand, by identities, at the extremes."""

from typing import Any

import pytest
from scipy.stats import ttest_rel

from fedapp.reports.comparison.summary import in_words, overview
from fedapp.reports.statistics import by_run, level, telling
from tests.reports.comparison.synthetic import result, site, written

FOUND = {
    "alone": {(0, 0): 0.5, (0, 1): 0.7, (1, 0): 0.55, (2, 0): 0.62},
    "average": {(0, 0): 0.78, (0, 1): 0.82, (1, 0): 0.76, (2, 0): 0.81},
    "tuned": {(0, 0): 0.72, (0, 1): 0.84, (1, 0): 0.80, (2, 0): 0.75},
}
"""Three runs: the first has two sites, the others one."""


def test_by_hand():
    """Alone less average by run: -0.2, -0.21, -0.19: mean -0.2, sd 0.01; t(0.975, 2) = 4.3027.

    t = -0.2 * sqrt(3) / 0.01 = -34.64, p = 0.000832; of two methods there is one pair.
    """
    told = telling({"alone": FOUND["alone"], "average": FOUND["average"]})
    found = told.differences["alone"]
    assert (found.n, found.value) == (3, pytest.approx(-0.2))
    assert found.high == pytest.approx(-0.2 + 4.3027 * 0.01 / 3**0.5, abs=1e-5)
    assert told.corrected["alone"] == pytest.approx(0.000832, abs=1e-6)
    assert (told.best, told.behind, told.open) == ("average", ["alone"], [])
    assert told.reach == pytest.approx(4.3027 * 0.01 / 3**0.5, abs=1e-5)


def test_it_is_the_paired_t_test_over_seeds():
    told, runs = telling({name: FOUND[name] for name in ("alone", "tuned")}), by_run(FOUND)
    test = ttest_rel(*([runs[name][seed] for seed in (0, 1, 2)] for name in ("alone", "tuned")))
    found, interval = told.differences["alone"], test.confidence_interval()
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.p == pytest.approx(test.pvalue) == told.corrected["alone"]
    assert level(1) == 0.95 and level(5) == pytest.approx(0.99)


def test_sites_of_one_run_that_all_say_the_same_tell_no_more_than_one():
    """Each site a hundred times over: the same runs, the same interval."""
    many = {
        method: {(seed, 100 * site + k): a for (seed, site), a in units.items() for k in range(100)}
        for method, units in FOUND.items()
    }
    few, told = telling(FOUND), telling(many)
    for method, difference in few.differences.items():
        assert told.differences[method].n == 3
        assert told.differences[method].high == pytest.approx(difference.high)
    assert told.behind == few.behind


def test_p_values_are_corrected_over_all_pairs_by_holm():
    """Of three pairs alone and average are furthest apart, tuned and average least."""
    told, runs = telling(FOUND), by_run(FOUND)
    values = [[runs[name][seed] for seed in (0, 1, 2)] for name in ("alone", "average", "tuned")]
    assert told.best == "average"
    p = ttest_rel(values[0], values[1]).pvalue
    assert told.corrected["alone"] == pytest.approx(3 * p)
    assert told.corrected["tuned"] == pytest.approx(ttest_rel(values[2], values[1]).pvalue)
    assert (told.behind, told.open) == (["alone"], ["tuned"])


def test_a_shift_of_all_changes_nothing_and_units_that_one_lacks_are_left_out():
    shifted = {m: {unit: a + 0.1 for unit, a in units.items()} for m, units in FOUND.items()}
    more = {**shifted, "alone": {**shifted["alone"], (9, 9): 0.0, (1, 9): 0.0}}
    before, after = telling(FOUND), telling(more)
    assert before.best == after.best and before.behind == after.behind
    assert before.reach == pytest.approx(after.reach)


def test_at_the_extremes_nothing_is_told():
    assert telling({}) is None
    assert telling({"alone": FOUND["alone"]}) is None
    assert telling({"alone": {(0, 0): 0.5}, "average": {(0, 1): 0.9}}) is None
    sites = range(1000)
    one = telling({"alone": {(0, k): 0.5 + k / 1e5 for k in sites},
                   "average": {(0, k): 0.9 - k / 1e5 for k in sites}})  # fmt: skip
    assert (one.best, one.behind, one.open, one.reach) == ("average", [], ["alone"], None)
    assert in_words(one) == "average is highest; one seed tells nothing about other seeds."
    same = telling({"alone": FOUND["alone"], "twin": FOUND["alone"]})
    assert same.behind == [] and same.reach is None and "varies" in in_words(same)


def test_in_words():
    text = in_words(telling(FOUND))
    assert text.startswith("over 3 seeds half of the pairs must differ by ") and text.endswith(".")
    assert "points or more to be told from chance; " in text
    assert "below average beyond chance: alone (-20.0); not told from average, the highest:" in text


def test_units_are_sites_of_seeds_with_a_test(tmp_path):
    results = [result("a", "m", 1, 0.5), result("b", "m", 5, 0.5)]
    sites = [site("a", "m", 1, 2, 0.5), site("a", "m", 1, 3, None), site("b", "m", 5, 2, 0.5)]
    assert written(tmp_path, results, sites).units("a") == {"m": {(1, 2): 0.5}}
    assert by_run({"m": {(1, 2): 0.5, (1, 3): 0.7, (4, 0): 0.1}}) == {"m": {1: 0.6, 4: 0.1}}


# --- the short table ------------------------------------------------------------------------------


def lines_of(out, rows, settings, methods, seeds):
    """The short table of a comparison that has these rows."""
    plan = {"settings": settings, "methods": methods, "seeds": list(range(seeds))}
    return overview(written(out, rows, **plan)).splitlines()


def rows_of(setting: str, method: str, *accuracies: float | None, **more: Any):
    by = {"selected_by": "validation", **more}
    return [result(setting, method, seed, a, **by) for seed, a in enumerate(accuracies)]


def test_mean_and_sample_deviation_over_seeds(tmp_path):
    results = [
        *rows_of("a", "fixavg", 0.5, 0.6, 0.7), *rows_of("b", "fixavg", 0.5, 0.6),
        *rows_of("a", "um_pfssl", 0.25), *rows_of("b", "um_pfssl", None),
    ]  # fmt: skip
    lines = lines_of(tmp_path, results, ["a", "b"], ["fixavg", "um_pfssl"], 3)
    assert lines[1].split() == ["a", "b"]
    assert lines[2].split() == ["fixavg", "60.0", "±", "10.0", "55.0", "±", "7.1", "(2)"]
    assert lines[3].split() == ["um_pfssl", "25.0", "(1)", "-"]
    assert len({line.find("±") for line in lines[2:3]}) == 1


def test_steps_and_images_stand_beside_methods_and_below_settings(tmp_path):
    """Means over cells: of 30 and 50 steps; who has none shows a dash."""
    results = [*rows_of("a", "fixavg", 0.5, 0.6), *rows_of("a", "um_pfssl", 0.25)]
    for row, n in zip(results, (30.0, 50.0), strict=False):
        row |= {"steps_per_site": n, "images_per_site": 1000.0 * n}
    lines = lines_of(tmp_path, results, ["a"], ["fixavg", "um_pfssl"], 2)
    assert lines[1].split() == ["a", "steps", "a", "site", "images", "a", "site"]
    assert lines[2].split()[-2:] == ["40", "40,000"] and lines[3].split()[-2:] == ["-", "-"]
    lines = lines_of(tmp_path, results, ["a", "b", "c"], ["fixavg", "um_pfssl"], 2)
    assert [line.split()[-2:] for line in lines[-2:]] == [["40", "-"], ["40,000", "-"]]


def test_the_title_says_how_the_round_was_chosen(tmp_path):
    last = rows_of("a", "fixavg", 0.5, selected_by="last round")
    title, *_ = lines_of(tmp_path, last, ["a"], ["fixavg"], 1)
    assert "accuracy after the last round, %" in title
    both = [*last, *rows_of("b", "fixavg", 0.5)]
    title, *_ = lines_of(tmp_path, both, ["a", "b"], ["fixavg"], 1)
    assert "accuracy at the round chosen by validation or after the last round, %" in title


def test_the_longer_side_stands_in_rows(tmp_path):
    settings = [f"nu={n}" for n in (1, 5, 10)]
    lines = lines_of(tmp_path, rows_of("nu=5", "um_pfssl", 0.5), settings, ["um_pfssl"], 1)
    assert [line.split() for line in lines[1:]] == [
        ["um_pfssl"], ["nu=1", "-"], ["nu=5", "50.0"], ["nu=10", "-"],
    ]  # fmt: skip


def test_another_metric_stands_in_accuracys_place(tmp_path):
    rows = [
        result("base", method, seed, 0.9, selected_balanced_accuracy=value)
        for method, values in {"alone": (0.5, 0.6), "average": (0.8, 0.7)}.items()
        for seed, value in enumerate(values)
    ]
    found = written(tmp_path, rows)
    lines = overview(found, "balanced_accuracy").splitlines()
    assert lines[0].startswith("Test balanced accuracy, all sites' images together,")
    assert "55.0 ± 7.1" in lines[2] and "75.0 ± 7.1" in lines[3]
    assert telling(found.units("base", "balanced_accuracy")).best == "average"
    assert found.units("base", "balanced_accuracy")["alone"] == {(0, 0): 0.5, (1, 0): 0.6}
