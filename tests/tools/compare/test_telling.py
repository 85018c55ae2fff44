"""What a comparison can tell: by hand, by identities, at the extremes."""

import pytest

from fedapp.tools.compare.telling import in_words, level, telling, units_of
from fedapp.tools.report.statistics import paired_difference

FOUND = {
    "alone": {(0, 0): 0.5, (0, 1): 0.6, (1, 0): 0.55},
    "average": {(0, 0): 0.7, (0, 1): 0.81, (1, 0): 0.74},
    "tuned": {(0, 0): 0.72, (0, 1): 0.78, (1, 0): 0.75},
}


def test_by_hand():
    """Alone less average: -0.2, -0.21, -0.19: mean -0.2, sd 0.01; t(0.9875, 2) = 6.2053."""
    told = telling({"alone": FOUND["alone"], "average": FOUND["average"], "third": FOUND["alone"]})
    found = told.differences["alone"]
    assert found.value == pytest.approx(-0.2)
    assert found.high == pytest.approx(-0.2 + 6.2053 * 0.01 / 3**0.5, abs=1e-5)
    assert (told.best, told.behind, told.open) == ("average", ["alone", "third"], [])
    assert told.reach == pytest.approx(6.2053 * 0.01 / 3**0.5, abs=1e-5)


def test_of_two_methods_it_is_the_paired_t_test():
    told = telling({name: FOUND[name] for name in ("alone", "tuned")})
    assert told.differences == {"alone": paired_difference(FOUND["alone"], FOUND["tuned"])}
    assert level(1) == 0.95 and level(5) == pytest.approx(0.99)


def test_a_shift_of_all_changes_nothing_and_units_that_one_lacks_are_left_out():
    shifted = {m: {unit: a + 0.1 for unit, a in units.items()} for m, units in FOUND.items()}
    more = {**shifted, "alone": {**shifted["alone"], (9, 9): 0.0}}
    before, after = telling(FOUND), telling(more)
    assert before.best == after.best and before.behind == after.behind
    assert before.reach == pytest.approx(after.reach)


def test_at_the_extremes_nothing_is_told():
    assert telling({}) is None
    assert telling({"alone": FOUND["alone"]}) is None
    assert telling({"alone": {(0, 0): 0.5}, "average": {(0, 1): 0.9}}) is None
    one = telling({"alone": {(0, 0): 0.5}, "average": {(0, 0): 0.9}})
    assert (one.best, one.behind, one.open, one.reach) == ("average", [], ["alone"], None)
    assert "cannot tell it from chance" in in_words(one)
    same = telling({"alone": FOUND["alone"], "twin": FOUND["alone"]})
    assert same.behind == [] and same.reach is None


def test_in_words():
    told = telling({**FOUND, "near": {(0, 0): 0.7, (0, 1): 0.83, (1, 0): 0.70}})
    text = in_words(told)
    assert text.startswith("differences under about ") and text.endswith(".")
    assert f"below {told.best} beyond chance: alone (-20.0)" in text
    assert "not told from" in text and "near" in text


def test_units_are_sites_of_seeds_with_a_test():
    row = {"setting": "a", "method": "m", "seed": 1, "site": 2, "selected_accuracy": 0.5}
    rows = [row, {**row, "site": 3, "selected_accuracy": None}, {**row, "setting": "b", "seed": 5}]
    assert units_of(rows, "a") == {"m": {(1, 2): 0.5}}
