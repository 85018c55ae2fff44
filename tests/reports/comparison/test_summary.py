"""What a comparison can tell: by hand, by identities, at the extremes."""

import pytest
from scipy.stats import ttest_rel

from fedapp.reports.comparison.summary import in_words, overview
from fedapp.reports.statistics import bonferroni_confidence, compare_with_best, mean_by_seed
from tests.reports.comparison.synthetic import result, runs, site, written

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
    told = compare_with_best({"alone": FOUND["alone"], "average": FOUND["average"]})
    found = told.differences["alone"]
    assert (found.n, found.value) == (3, pytest.approx(-0.2))
    assert found.high == pytest.approx(-0.2 + 4.3027 * 0.01 / 3**0.5, abs=1e-5)
    assert told.corrected["alone"] == pytest.approx(0.000832, abs=1e-6)
    assert (told.best, told.worse, told.undecided) == ("average", ["alone"], [])
    assert told.median_half_width == pytest.approx(4.3027 * 0.01 / 3**0.5, abs=1e-5)


def test_sites_of_one_run_that_all_say_the_same_tell_no_more_than_one():
    """Each site a hundred times over: the same runs, the same interval."""
    many = {
        method: {(seed, 100 * site + k): a for (seed, site), a in units.items() for k in range(100)}
        for method, units in FOUND.items()
    }
    few, told = compare_with_best(FOUND), compare_with_best(many)
    for method, difference in few.differences.items():
        assert told.differences[method].n == 3
        assert told.differences[method].high == pytest.approx(difference.high)
    assert told.worse == few.worse


def test_p_values_are_of_the_paired_t_test_over_seeds_corrected_over_all_pairs_by_holm():
    """Of three pairs alone and average are furthest apart, tuned and average least."""
    told, means = compare_with_best(FOUND), mean_by_seed(FOUND)
    values = {name: [means[name][seed] for seed in (0, 1, 2)] for name in FOUND}
    far, near = (ttest_rel(values[name], values["average"]) for name in ("alone", "tuned"))
    assert told.best == "average"
    assert told.corrected["alone"] == pytest.approx(3 * far.pvalue)
    assert told.corrected["tuned"] == pytest.approx(near.pvalue)
    found = told.differences["tuned"]
    assert (found.low, found.high) == pytest.approx(tuple(near.confidence_interval()))
    assert (told.worse, told.undecided) == (["alone"], ["tuned"])
    assert bonferroni_confidence(1) == 0.95 and bonferroni_confidence(5) == pytest.approx(0.99)


def test_a_shift_of_all_changes_nothing_and_units_that_one_lacks_are_left_out():
    shifted = {m: {unit: a + 0.1 for unit, a in units.items()} for m, units in FOUND.items()}
    more = {**shifted, "alone": {**shifted["alone"], (9, 9): 0.0, (1, 9): 0.0}}
    before, after = compare_with_best(FOUND), compare_with_best(more)
    assert before.best == after.best and before.worse == after.worse
    assert before.median_half_width == pytest.approx(after.median_half_width)


def test_at_the_extremes_nothing_is_told():
    assert compare_with_best({}) is None
    assert compare_with_best({"alone": FOUND["alone"]}) is None
    assert compare_with_best({"alone": {(0, 0): 0.5}, "average": {(0, 1): 0.9}}) is None
    one = compare_with_best({"alone": {(0, k): 0.5 + k / 1e5 for k in range(1000)},
                   "average": {(0, k): 0.9 - k / 1e5 for k in range(1000)}})  # fmt: skip
    assert (one.best, one.worse, one.undecided, one.median_half_width) == (
        "average",
        [],
        ["alone"],
        None,
    )
    assert in_words(one) == "average is highest; one seed tells nothing about other seeds."
    same = compare_with_best({"alone": FOUND["alone"], "twin": FOUND["alone"]})
    assert same.worse == [] and same.median_half_width is None and "varies" in in_words(same)


def test_in_words():
    text = in_words(compare_with_best(FOUND))
    best = "average is highest; below it beyond chance: alone (-20.0); cannot be told from it: "
    assert text.startswith(best) and ". Over 3 seeds half of the pairs must differ by " in text
    assert text.endswith(" points or more to be told from chance.")
    two = in_words(compare_with_best({name: FOUND[name] for name in ("average", "alone")}))
    assert ". Over 3 seeds the two must differ by " in two
    named = in_words(compare_with_best(FOUND), str.upper)
    assert named.startswith(best.replace("average", "AVERAGE").replace("alone", "ALONE"))


def test_units_are_sites_of_seeds_with_a_test_and_of_another_metric_seeds(tmp_path):
    more = {"selected_balanced_accuracy": 0.25}
    results = [result("a", "m", 1, 0.5, **more), result("b", "m", 5, 0.5)]
    sites = [site("a", "m", 1, 2, 0.5), site("a", "m", 1, 3, None), site("b", "m", 5, 2, 0.5)]
    found = written(tmp_path, results, sites)
    assert found.units("a") == {"m": {(1, 2): 0.5}}
    assert found.units("a", "balanced_accuracy") == {"m": {(1, 0): 0.25}}
    title, _, line, _ = overview(found, "balanced_accuracy").splitlines()
    assert title.startswith("Test balanced accuracy, all sites' images together,")
    assert line.split() == ["a", "25.0", "(1)"]
    assert mean_by_seed({"m": {(1, 2): 0.5, (1, 3): 0.7, (4, 0): 0.1}}) == {"m": {1: 0.6, 4: 0.1}}


# --- the short table ------------------------------------------------------------------------------

VALID = {"selected_by": "validation"}


def words_of(out, rows, **plan):
    """The short table of a comparison that has these rows, line by line and word by word."""
    title, *lines = overview(written(out, rows, **plan)).splitlines()
    return title, [line.split() for line in lines]


def test_mean_and_sample_deviation_over_seeds(tmp_path):
    rows = [
        *runs("a", "fixavg", 0.5, 0.6, 0.7, **VALID), *runs("b", "fixavg", 0.5, 0.6, **VALID),
        *runs("a", "um_pfssl", 0.25, **VALID), *runs("b", "um_pfssl", None, **VALID),
    ]  # fmt: skip
    assert words_of(tmp_path, rows)[1] == [
        ["a", "b"],
        ["fixavg", "60.0", "±", "10.0", "55.0", "±", "7.1", "(2)"],
        ["um_pfssl", "25.0", "(1)", "-"],
    ]


def test_steps_and_images_stand_beside_methods_and_below_settings(tmp_path):
    """Means over cells: of 30 and 50 steps; who has none shows a dash."""
    rows = [*runs("a", "fixavg", 0.5, 0.6), *runs("a", "um_pfssl", 0.25)]
    for row, n in zip(rows, (30.0, 50.0), strict=False):
        row |= {"steps_per_site": n, "images_per_site": 1000.0 * n}
    _, lines = words_of(tmp_path, rows)
    assert lines[0] == ["a", "steps", "a", "site", "images", "a", "site"]
    assert lines[1][-2:] == ["40", "40,000"] and lines[2][-2:] == ["-", "-"]
    _, lines = words_of(tmp_path, rows, settings=["a", "b", "c"])
    assert lines[0] == ["fixavg", "um_pfssl"] and lines[3] == ["c", "-", "-"]
    assert [line[-2:] for line in lines[-2:]] == [["40", "-"], ["40,000", "-"]]


def test_the_title_says_how_the_round_was_chosen(tmp_path):
    last = runs("a", "fixavg", 0.5, selected_by="last round")
    assert "accuracy after the last round, %" in words_of(tmp_path, last)[0]
    title, _ = words_of(tmp_path, [*last, *runs("b", "fixavg", 0.5, **VALID)])
    assert "accuracy at the round chosen by validation or after the last round, %" in title
