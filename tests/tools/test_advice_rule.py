"""Which method to take: by hand, by identities, at the extremes, and how often it errs."""

import numpy as np
import pytest

from fedapp.reports.statistics import paired_difference
from fedapp.tools.advise import MARGIN, advise

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
